//! One check that every layer goes through, and what it is made of.

mod check;

pub use burn_amp_tests::prelude::*;

pub use check::{Runs, check};

/// A tensor of values in (-1, 1).
pub fn tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    burn_amp_tests::random(7, shape, device)
}

/// A list of layers, with a test for each line: its type, how it runs, how it is built, the shape of its input, and its
/// forward pass, if that takes more than the input.
macro_rules! layers {
    ($($name:ident: $layer:literal, $runs:ident, $init:expr, $shape:expr $(, $forward:expr)?;)*) => {
        /// What is listed here, and how it runs.
        pub const LAYERS: &[(&str, $crate::support::Runs)] =
            &[$(($layer, $crate::support::Runs::$runs),)*];

        $(
            #[test]
            fn $name() {
                let runs = $crate::support::Runs::$runs;
                $crate::support::check(runs, $init, $shape, $crate::support::forward!($($forward)?));
            }
        )*
    };
}

macro_rules! forward {
    () => {
        |layer, x, _| layer.forward(x)
    };
    ($forward:expr) => {
        $forward
    };
}

pub(crate) use {forward, layers};
