//! Named tensors and layers of a model.
//!
//! ```
//! use burn::{nn::Linear, tensor::{Tensor, activation::relu}};
//! use burn_amp_report::{probe, probed};
//!
//! fn forward(hidden: &Linear, output: &Linear, x: Tensor<2>) -> Tensor<2> {
//!     let x = probe("input", x);
//!     let x = probed("hidden", x, |x| relu(hidden.forward(x)));
//!     probed("output", x, |x| output.forward(x))
//! }
//! ```

use burn::tensor::Tensor;
use burn_amp_core::CastFloat;
use burn_amp_core::internal::observe::{self, Region};
use std::any::Any;

use crate::{audit::Trace, flight::Ring};

/// Returns `x` as it is, and has an [`audit`](crate::audit()) or a [`FlightRecorder`](crate::FlightRecorder) look at it, and at its gradient on the way back.
///
/// It works inside `autocast` and `in_f32`, and in a model that a `Learner` trains; in an audit everywhere. Elsewhere, and
/// where nobody looks, it does nothing. Any shape; f16, bf16 and f32, and in an audit f64. A name that comes again in a step is numbered. Does not wait for the device.
pub fn probe<const D: usize>(name: &str, x: Tensor<D>) -> Tensor<D> {
    inspect(name, x, false)
}

/// Runs a layer and [`probe`]s its output. An [`audit`](crate::audit()) can run the layer in f32, to find out which layers need it.
///
/// Takes what [`in_f32`](burn_amp_core::in_f32) does: a layer with several inputs takes a tuple of them. Half-precision tensors that the
/// closure captures meet f32 ones in such a trial, so pass them as inputs.
pub fn probed<I: CastFloat, const D: usize>(
    name: &str,
    input: I,
    layer: impl FnOnce(I) -> Tensor<D>,
) -> Tensor<D> {
    inspect(name, Region::named(name).run(input, layer), true)
}

fn inspect<const D: usize>(name: &str, x: Tensor<D>, is_layer: bool) -> Tensor<D> {
    let Some(observer) = observe::here() else {
        return x;
    };
    let observer: &dyn Any = &*observer;
    match observer.downcast_ref::<Ring>() {
        Some(ring) => ring.probe(name, x),
        None => match observer.downcast_ref::<Trace>() {
            Some(trace) => trace.probe(name, x, is_layer),
            None => x,
        },
    }
}
