//! One check that every layer goes through, and what it is made of.

mod check;

pub use burn_amp_tests::prelude::*;

pub use check::{Runs, each_precision};

/// A tensor of values in (-1, 1).
pub fn tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    burn_amp_tests::random(7, shape, device)
}

/// A list of layers, with a test for each line: its type, how it runs, how it is built, the shape of its input, and its
/// forward pass, if that takes more than the input. What is built without a device has no parameters.
macro_rules! layers {
    ($($name:ident: $layer:literal, $runs:ident, |$device:tt| $init:expr, $shape:expr $(, $forward:expr)?;)*) => {
        /// What is listed here, and how it runs.
        pub const LAYERS: &[(&str, $crate::layers::support::Runs)] =
            &[$(($layer, $crate::layers::support::Runs::$runs),)*];

        $(
            #[test]
            fn $name() {
                use $crate::layers::support::{Runs, check_of, each_precision, forward};
                let runs = Runs::$runs;
                each_precision(runs, |$device| $init, $shape, forward!($($forward)?), check_of!($device));
            }
        )*
    };
}

macro_rules! check_of {
    (_) => {
        |layer| layer.has_no_parameters()
    };
    ($device:ident) => {
        |layer| layer.lives()
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

pub(crate) use {check_of, forward, layers};
