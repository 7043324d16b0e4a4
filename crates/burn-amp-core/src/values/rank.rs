/// Runs code with a run-time rank as the constant `$d`; `$other` is for a rank that Burn's tensors do not have, which no tensor of theirs has.
macro_rules! with_rank {
    ($rank:expr, $d:ident => $body:expr) => {
        $crate::values::with_rank!($rank, $d => $body, rank => unreachable!("a tensor of rank {rank}"))
    };
    ($rank:expr, $d:ident => $body:expr, $other:ident => $fallback:expr) => {
        $crate::values::with_rank!(@ $rank, $d => $body, $other => $fallback, 0 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@ $rank:expr, $d:ident => $body:expr, $other:ident => $fallback:expr, $($value:literal)*) => {
        match $rank {
            $($value => {
                const $d: usize = $value;
                $body
            })*
            $other => $fallback,
        }
    };
}
pub(crate) use with_rank;
