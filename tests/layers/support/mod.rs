//! One check that every layer goes through, and what it is made of.

mod check;

pub use burn_amp_tests::prelude::*;

pub use check::{Runs, each_precision};

/// Whether this is a process in which no other test draws random numbers, of which a device has one row for all. Else the test of this name
/// has passed in one. Layers that draw none need none.
pub fn is_alone(layer: &str, module: &str, name: &str) -> bool {
    let draws = ["Dropout", "GaussianNoise", "RRelu"].contains(&layer);
    !draws || said_in_child(module, name).is_none()
}

/// A tensor of values in (-1, 1).
pub fn tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    burn_amp_tests::random(7, shape, device)
}

/// A list of layers, with a test for each line: its type, how it runs, how it is built, the shape of its input, and its
/// forward pass, if that takes more than the input.
macro_rules! layers {
    ($($name:ident: $layer:literal, $runs:ident, |$device:tt| $init:expr, $shape:expr $(, $forward:expr)?;)*) => {
        /// What is listed here, and how it runs.
        pub const LAYERS: &[(&str, $crate::layers::support::Runs)] =
            &[$(($layer, $crate::layers::support::Runs::$runs),)*];

        $(
            #[test]
            fn $name() {
                use $crate::layers::support::{Runs, each_precision, forward, is_alone};
                if is_alone($layer, module_path!(), stringify!($name)) {
                    each_precision(Runs::$runs, |$device| $init, $shape, forward!($($forward)?));
                }
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
