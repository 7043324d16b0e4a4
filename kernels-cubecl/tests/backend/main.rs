//! `unscale`, `inspect` and `histogram` against a reference on the host, on the backend that the features choose.
//!
//! `cargo test -p burn-amp-kernels` runs on Flex, `cargo test -p burn-amp-kernels --features wgpu` on wgpu, and so on:
//! every test gets its device from [`device`], and every topic runs for each of the systems that have a `suite!`.
//! Where several backends are compiled in, the variable `BURN_DEVICE` chooses among them. With feature `ndarray`,
//! `BURN_DEVICE=ndarray` names a backend without kernels: `kernels` then runs on the fallback, as it does for a user.

/// All topics, so that every system runs the same ones: the tests of each for the system that an expression gives.
macro_rules! suite {
    ($system:expr) => {
        suite! { $system;
            layouts: random_lists, dimensions, empty_lists;
            ownership: what_was_read, products;
            values: special, all_halves, magnitudes, edges;
            large: counts_beyond_24_bits, sums_as_in_f64, same_bits;
        }
    };
    ($system:expr; $($topic:ident: $($test:ident),+;)+) => {
        $(mod $topic {
            $(#[test]
            fn $test() {
                crate::$topic::$test(&$system);
            })+
        })+
    };
}

mod blend;
mod case;
mod clip;
mod create;
mod device;
mod formula;
mod histogram;
mod host;
mod large;
mod layouts;
#[cfg(not(feature = "cubecl"))]
mod list;
mod ownership;
mod skipped;
mod system;
mod update;
mod values;
mod views;

use burn::tensor::{DType, Device, Tensor, TensorData, bf16, f16, s};
use burn_amp_kernels::*;
use {case::Case, create::*, device::*, host::*, skipped::skipped, system::*, views::planes};

/// The functions of the crate: kernels where the backend has them.
mod kernels {
    suite!(crate::system::System { is_composed: false });
}

/// The composition of Burn's operations, on the same device. Where there are kernels nobody gets it, and on a device it takes minutes.
#[cfg(not(feature = "cubecl"))]
mod fallback {
    suite!(crate::system::System { is_composed: true });
}
