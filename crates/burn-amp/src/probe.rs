//! The largest gradients of a dry run where they are in half precision.

use burn::tensor::DType;
use burn_amp_kernels::{Crossing, Watch};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dtype::is_half;

/// Hears of every gradient that passes a cast of a dry run.
#[derive(Clone, Default)]
pub(crate) struct Probe(Arc<Mutex<Vec<Passed>>>);

struct Passed {
    crossing: Crossing,
    factor: f64,
    /// Whether it was in half precision before the cast, and after it.
    before: bool,
    after: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Probed {
    /// Whether anything has passed.
    pub(crate) heard: bool,
    /// The largest finite magnitude in half precision.
    pub(crate) max_abs: f64,
    /// The same, of all casts of the dry run, those of f32 included.
    pub(crate) largest: f64,
    /// Whether something was not finite there.
    pub(crate) overflow: bool,
}

impl Probe {
    /// Hears of a cast whose forward pass goes from one dtype to another.
    pub(crate) fn watch(&self, from: DType, to: DType, factor: f64) -> Watch {
        let passed = self.0.clone();
        Watch::of_gradient(move |crossing| {
            let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
            passed.push(Passed {
                crossing,
                factor,
                before: is_half(to),
                after: is_half(from),
            });
        })
    }

    /// Reads what has passed so far. Waits for the device.
    pub(crate) fn read(&self) -> Probed {
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut probed = Probed::default();
        for Passed {
            crossing,
            factor,
            before,
            after,
        } in passed.drain(..)
        {
            let Some(status) = crossing.read() else {
                continue;
            };
            probed.heard = true;
            if !status.overflow {
                probed.largest = probed
                    .largest
                    .max(status.max_abs)
                    .max(status.max_abs / factor);
            }
            probed.overflow |= before && !status.gradient_finite;
            probed.overflow |= after && (status.overflow || !status.gradient_finite);
            if before {
                probed.max_abs = probed.max_abs.max(status.max_abs / factor);
            }
            if after && !status.overflow {
                probed.max_abs = probed.max_abs.max(status.max_abs);
            }
        }
        probed
    }
}
