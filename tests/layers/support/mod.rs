//! One check that every layer goes through, and what it is made of.

mod check;
mod data;
mod read;

pub use check::{Runs, check};
pub use data::{fill, tensor};
pub use read::{gradients, parameters, relative_error, values};

/// A list of layers, with a test for each line: its type, how it runs, how it is built, the shape of its input, and its
/// forward pass.
macro_rules! layers {
    ($($name:ident: $layer:literal, $runs:ident, $init:expr, $shape:expr, $forward:expr;)*) => {
        /// What is listed here, and how it runs.
        pub const LAYERS: &[(&str, $crate::support::Runs)] =
            &[$(($layer, $crate::support::Runs::$runs),)*];

        $(
            #[test]
            fn $name() {
                $crate::support::check($crate::support::Runs::$runs, $init, $shape, $forward);
            }
        )*
    };
}

pub(crate) use layers;
