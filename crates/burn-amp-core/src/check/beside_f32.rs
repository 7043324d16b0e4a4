//! A loss in half precision beside the same loss in f32.

use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor, TensorData};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{AmpError, short};
use crate::{border::DryRunNotes, gradients::Entry, values::AnyTensor};

/// The distance that a loss may have from that in f32, whatever leaves the scopes: as much as 4 bits of bf16, or 7 of f16, that are lost.
const LOSS: f64 = 1.0 / 64.0;
/// The distance that the scopes' outputs may have, in norm. Rounding alone gives 0.001 in f16 and 0.01 in bf16, and 0.1 where a softmax has large inputs; where f32 is
/// taken for f16, or a norm returns zeros, 1 and more.
const OUTPUTS: f64 = 1.0 / 4.0;
/// The share of the largest gradient that f32 leaves of those that are zero.
const ROUNDING: f64 = 1e-4;
/// The loss is drawn again so often, to find out whether it is random.
const DRAWS: u64 = 4;

/// A tensor that has left a scope, or a region of this name.
type Left = (Option<Arc<str>>, TensorData);

/// The results of a forward pass.
#[derive(Clone)]
pub(super) struct Forward {
    loss: f64,
    values: Vec<Left>,
}

impl Forward {
    /// Waits for the device.
    pub(super) fn of<const D: usize>(loss: &Tensor<D>, notes: &mut DryRunNotes) -> Self {
        let values = std::mem::take(&mut notes.values).into_iter();
        Self {
            loss: loss.clone().inner().into_data().iter::<f64>().sum(),
            values: values
                .map(|(region, value)| (region, value.into_data()))
                .collect(),
        }
    }

    /// The same tensors of both; none where other ones have left the scopes in f32.
    fn pairs<'a>(&'a self, full: &'a Self) -> Option<Vec<(Option<&'a str>, [&'a TensorData; 2])>> {
        if self.values.len() != full.values.len() {
            return None;
        }
        let pair = |((region, half), (other, full)): (&'a Left, &'a Left)| {
            let are_same = region == other && half.shape() == full.shape();
            are_same.then_some((region.as_deref(), [half, full]))
        };
        self.values.iter().zip(&full.values).map(pair).collect()
    }

    /// The distance of the scopes' outputs from the same in f32: the norm of the difference over the norm in f32.
    fn distance(&self, full: &Self) -> Option<f64> {
        let (mut difference, mut size) = (0.0, 0.0);
        for (region, [half, full]) in self.pairs(full)? {
            if region.is_none() {
                difference += square(
                    half.iter::<f64>()
                        .zip(full.iter::<f64>())
                        .map(|(a, b)| a - b),
                );
                size += square(full.iter::<f64>());
            }
        }
        match size > 0.0 && size.is_finite() {
            true if difference.is_finite() => Some((difference / size).sqrt()),
            true => Some(f64::INFINITY),
            false => None,
        }
    }

    /// The tensors that have left the scopes.
    fn outputs(&self) -> impl Iterator<Item = &TensorData> {
        let outputs = self.values.iter().filter(|(region, _)| region.is_none());
        outputs.map(|(_, value)| value)
    }

    /// Refuses a loss that is far from that in f32, because what leaves the scopes is; warns of one that magnifies small differences. `again` draws the
    /// loss in f32 with other random numbers: where it is random, it may be as far as two draws are.
    pub(super) fn refuse_far(
        &self,
        full: &Self,
        dtype: DType,
        mut again: impl FnMut(u64) -> Option<Self>,
    ) -> Result<(), AmpError> {
        let off = (self.loss - full.loss).abs();
        let size = self.loss.abs().max(full.loss.abs());
        if !full.loss.is_finite() || off <= LOSS * size {
            return Ok(());
        }
        let Some(outputs) = self.distance(full) else {
            return Ok(());
        };
        if outputs <= OUTPUTS {
            if off > size / 4.0 && off > magnitude(full.outputs()) * LOSS {
                warn!(
                    "the loss is {} in {dtype:?} and {} in f32, although what leaves `autocast` is the same but for rounding: the loss magnifies that, as \
                     differences do that are divided by a small step. Compute what is divided outside of `autocast`, or in f32",
                    short(self.loss),
                    short(full.loss)
                );
            }
            return Ok(());
        }
        for draw in 1..=DRAWS {
            let Some(other) = again(draw) else { break };
            let moved = (other.loss - full.loss).abs();
            if off <= 2.0 * moved && other.distance(full).is_some_and(|by| outputs <= 2.0 * by) {
                return Ok(());
            }
            if moved <= size * 1e-6 {
                break;
            }
        }
        Err(AmpError::FarFromF32 {
            dtype,
            half: self.loss,
            full: full.loss,
            outputs,
        })
    }

    /// Warns of tensors that are all zero in half precision and not in f32.
    pub(super) fn warn_of_zeros(&self, full: &Self, dtype: DType) {
        for (region, [half, full]) in self.pairs(full).into_iter().flatten() {
            if is_zero(half) && !is_zero(full) {
                let place = region.map_or("`autocast`".to_string(), |name| format!("`{name}`"));
                warn!("all that leaves {place} is zero in {dtype:?}, and not in f32: {ZEROS}");
            }
        }
    }
}

/// The origin of zeros.
const ZEROS: &str = "an operation before it overflows and is divided by, as a norm by hand does beyond 256, whose square is infinite. Run it `in_f32`";

/// Warns of parameters whose gradients are all zero in half precision and not in f32: what enters their layers is. `higher` gives the gradients at a
/// higher loss scale, which those are not zero at that were too small.
pub(super) fn warn_of_zero_gradients(
    entries: &[Entry],
    [half, full]: [&GradientsParams; 2],
    dtype: DType,
    higher: impl FnOnce() -> Result<GradientsParams, AmpError>,
) -> Result<(), AmpError> {
    let data = |grads, entry: &Entry| entry.get(grads).map(AnyTensor::into_data);
    let is_lost = |grads, entry: &Entry| data(grads, entry).is_some_and(|data| is_zero(&data));
    let sizes: Vec<f64> = (entries.iter())
        .map(|entry| data(full, entry).map_or(0.0, |data| magnitude([&data])))
        .collect();
    let least = sizes.iter().copied().fold(0.0, f64::max) * ROUNDING;
    let found = entries.iter().zip(sizes);
    let mut lost: Vec<&Entry> = found
        .filter(|(entry, size)| *size > least && is_lost(half, entry))
        .map(|(entry, _)| entry)
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let higher = higher()?;
    lost.retain(|entry| is_lost(&higher, entry));
    if !lost.is_empty() {
        let paths: Vec<&str> = lost.iter().map(|entry| entry.path.as_str()).collect();
        warn!(
            "the gradients of `{}` are all zero in {dtype:?} at any loss scale, and not in f32, so what enters these layers is zero: {ZEROS}",
            paths.join("`, `")
        );
    }
    Ok(())
}

/// The root of the mean square of all values.
fn magnitude<'a>(tensors: impl IntoIterator<Item = &'a TensorData>) -> f64 {
    let (mut squares, mut count) = (0.0, 0);
    for tensor in tensors {
        squares += square(tensor.iter::<f64>());
        count += tensor.num_elements();
    }
    (squares / count.max(1) as f64).sqrt()
}

/// The sum of the squares.
fn square(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

fn is_zero(values: &TensorData) -> bool {
    values.num_elements() > 0 && values.iter::<f64>().all(|value| value == 0.0)
}

/// The results of a forward pass in f32; none where it cannot be run in f32, which is warned of.
pub(super) fn attempt<T>(run: impl FnOnce() -> Result<T, AmpError>) -> Option<T> {
    let reason = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => burn_amp_kernels::panic_message(&*panic).to_string(),
    };
    warn!(
        "the loss cannot be computed in f32 to compare it: {reason}. Where a closure names the half precision, write `tensor.cast(x.dtype())`"
    );
    None
}
