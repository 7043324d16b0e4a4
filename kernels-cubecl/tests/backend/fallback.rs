//! The composition of Burn's operations, on the same device.

use burn_amp_kernels::fallback;

use crate::system::System;

fn composed() -> System {
    System {
        unscale: fallback::unscale,
        inspect: fallback::inspect,
        tolerance: 1e-5,
    }
}

suite!(crate::fallback::composed());
