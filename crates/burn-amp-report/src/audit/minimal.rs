//! The smallest set that is enough, by bisection.

/// Finds a smallest part of `candidates` for which `is_enough` holds, if it holds for all of them: without any member of it, it does not hold.
///
/// QuickXplain (U. Junker, "Preferred Explanations and Relaxations for Over-Constrained Problems", 2004): for `k` members out
/// of `n`, about `2 k log2(n / k) + 2 k` calls.
pub(crate) fn minimal<T: Clone, E>(
    candidates: &[T],
    is_enough: &mut impl FnMut(&[T]) -> Result<bool, E>,
) -> Result<Vec<T>, E> {
    search(&[], false, candidates, is_enough)
}

fn search<T: Clone, E>(
    taken: &[T],
    has_grown: bool,
    candidates: &[T],
    is_enough: &mut impl FnMut(&[T]) -> Result<bool, E>,
) -> Result<Vec<T>, E> {
    if candidates.is_empty() || (has_grown && is_enough(taken)?) {
        return Ok(Vec::new());
    }
    if candidates.len() == 1 {
        return Ok(candidates.to_vec());
    }
    let (first, second) = candidates.split_at(candidates.len() / 2);
    let with = |more: &[T]| [taken, more].concat();
    let of_second = search(&with(first), true, second, is_enough)?;
    let of_first = search(&with(&of_second), !of_second.is_empty(), first, is_enough)?;
    Ok([of_first, of_second].concat())
}

#[cfg(test)]
mod tests {
    use super::minimal;

    #[test]
    fn what_is_left_is_needed_and_enough() {
        let all: Vec<u32> = (0..32).collect();
        for needed in [vec![7], vec![0, 31], vec![3, 4, 20], all.clone()] {
            let mut calls = 0;
            let mut is_enough = |set: &[u32]| {
                calls += 1;
                Ok::<_, ()>(needed.iter().all(|member| set.contains(member)))
            };
            assert_eq!(minimal(&all, &mut is_enough).unwrap(), needed);
            assert!(calls <= 8 * needed.len() + 4, "{needed:?}: {calls}");
        }
    }

    #[test]
    fn either_of_two_is_enough() {
        let mut is_enough = |set: &[char]| Ok::<_, ()>(set.contains(&'b') || set.contains(&'d'));
        let found = minimal(&['a', 'b', 'c', 'd'], &mut is_enough).unwrap();
        assert_eq!(found.len(), 1);
        assert!(is_enough(&found).unwrap());
    }
}
