//! A dry run for a new program: [`MixedPrecision::check`].

mod beside_f32;
mod calibrate;

pub use calibrate::search_scale;

use beside_f32::{Forward, attempt, warn_of_zero_gradients};
use burn::tensor::{DType, FloatDType, Tensor};
use burn::{module::Module, optim::GradientsParams};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::border::{DryRun, DryRunNotes, MixedPrecision, mixed_precision::check_devices, scope};
use crate::error::{AmpError, BorderFault};
use crate::gradients::{Entries, Entry, GradientStatus, inspect, unchanged};
use crate::values::{AnyTensor, is_half};

/// The scale is halved so often to find one at which nothing overflows.
const MAX_HALVINGS: i32 = 40;
/// Below this, f32 itself rounds: a scale moves gradients out of there.
const SMALL: f32 = 1e-30;
/// A gradient that is zero at a scale this far above is zero at each.
const HIGHER: f64 = 1024.0;
/// The seed of the devices' random numbers.
const SEED: u64 = 0x5ca1e;

impl MixedPrecision {
    /// Checks a new program before it trains: runs the loss and its backward pass, and looks for mistakes.
    ///
    /// `loss` computes a loss as the training loop does, with [`autocast`](Self::autocast) inside. It runs three times or
    /// more. The gradients with the loss scale at the border are compared, bit for bit, with those of a loss that is scaled by
    /// hand: a difference shows a tensor that enters or leaves a scope without being scaled (cast by hand, captured, carried out).
    ///
    /// The loss is compared with that in f32, where all scopes compute in f32: it is refused if it differs by more than 1/64 and what leaves the scopes by more
    /// than 1/4 in norm, which no rounding does. If the loss is random, as with dropout, it may differ as two draws in f32 do. A loss that differs although
    /// what leaves the scopes does not is warned of, and so is a layer whose input is all zero in half precision and not in f32.
    ///
    /// A free [`autocast`](crate::autocast) opens a scope here if it does so in the training: once this handle is in a `Learner`.
    /// Running statistics are restored before this returns. Seeds the device's random numbers. Waits for the device.
    ///
    /// Returns the status of the gradients at the present loss scale (the power of two at or below it, and at least 1; 65536 where no loss is scaled), or at the
    /// highest one below at which they are finite.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Distribution, FloatDType, Tensor}};
    /// use burn_amp::{AmpError, MixedPrecision};
    ///
    /// let device = Device::flex().autodiff();
    /// let amp = MixedPrecision::f16();
    /// let model = amp.attach(LinearConfig::new(4, 2).init(&device));
    /// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
    ///
    /// amp.check(&model, |m| amp.autocast(input.clone(), |x| m.forward(x)).square().mean())?;
    ///
    /// // A tensor that is cast by hand leaves the scope without its scale.
    /// let error = amp.check(&model, |m| {
    ///     let mut hidden = None;
    ///     amp.autocast(input.clone(), |x| {
    ///         let y = m.forward(x);
    ///         hidden = Some(y.clone().cast(FloatDType::F32));
    ///         y
    ///     });
    ///     hidden.unwrap().square().mean()
    /// });
    /// assert!(matches!(error, Err(AmpError::BorderLeak { .. })));
    /// # Ok::<(), AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::BorderLeak`], which names the parameter with the most bits that differ. [`AmpError::FarFromF32`] as above. [`AmpError::Border`] and the
    /// other errors of [`try_autocast`](Self::try_autocast). [`AmpError::NoScope`] if no scope of this was opened,
    /// [`BorderFault::Loss`] for a loss in half precision, and for one that is taken inside `autocast`: a vector of one value that
    /// leaves it. [`AmpError::HalfPrecisionParameter`] if the gradient of a parameter is narrower than the parameter, which met half precision without a cast.
    /// [`AmpError::TwoPrecisions`] if gradients pass through scopes of another handle too. [`AmpError::GradientsNotFinite`] if they overflow at every
    /// scale, [`AmpError::NoGradients`] if there is none, the loss was computed without autodiff, or all are zero. What [`check_device`](Self::check_device)
    /// returns for a device of the model.
    ///
    /// # Panics
    ///
    /// Where `loss` panics for another reason.
    pub fn check<M: Module, const D: usize>(
        &self,
        model: &M,
        loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<GradientStatus, AmpError> {
        check_devices(self, self.dtype(), model)?;
        // A power of two, so that it can be taken out again without rounding.
        let scale = match self.is_scaled() {
            true => f64::from(self.loss_scale().max(1.0)).log2().floor().exp2(),
            false => 65536.0,
        };
        let mut runs = Runs {
            amp: self,
            model,
            loss,
            half: None,
        };
        let (scale, grads, status) = runs.finite(scale)?;
        let gradients = status.gradients();
        if gradients == 0 {
            return Err(AmpError::NoGradients { gradients });
        }
        let entries = Entries::of(&grads, model)?.gradients;
        let is_narrow = |entry: &&Entry| entry.gradient.size() < entry.parameter.size();
        if let Some(entry) = entries.iter().find(is_narrow) {
            return Err(entry.misfit(entry.gradient));
        }
        let half = runs.half.clone().expect("the first run was kept");
        runs.compare_with_f32(&half, &entries, &grads, scale)?;
        if status.is_all_zero() {
            return Err(AmpError::NoGradients { gradients });
        }
        let by_hand = runs.gradients(1.0, scale)?;
        let Some(found) = leak(&entries, &grads, &by_hand, scale) else {
            return Ok(status);
        };
        // A device that adds in another order each time proves nothing.
        let again = runs.gradients(scale, 1.0)?;
        if leak(&entries, &grads, &again, 1.0).is_some() {
            warn!(
                "the same loss gives different gradients each time, so tensors that enter or leave `autocast` without the loss scale cannot be found"
            );
            return Ok(status);
        }
        Err(found)
    }

    /// Refuses what came out of the scopes of a dry run.
    fn check_notes(&self, notes: &DryRunNotes) -> Result<(), AmpError> {
        let dtype = self.dtype().into();
        if notes.runs_in_f32 && is_half(dtype) {
            return Err(AmpError::NoScope);
        }
        if notes.is_loss_inside && is_half(dtype) {
            return Err(AmpError::border(BorderFault::Loss, None, dtype));
        }
        let mut others = notes.handles.iter().filter(|other| *other != self);
        match others.any(Self::is_scaled) {
            true => Err(AmpError::TwoPrecisions),
            false => Ok(()),
        }
    }
}

/// The runs of a check.
struct Runs<'a, M, F> {
    amp: &'a MixedPrecision,
    model: &'a M,
    loss: F,
    /// The forward pass of the first of them.
    half: Option<Forward>,
}

impl<M: Module, F: FnMut(&M) -> Tensor<D>, const D: usize> Runs<'_, M, F> {
    /// The gradients with this loss scale at the border, and this factor of the loss.
    fn gradients(&mut self, at_border: f64, by_hand: f64) -> Result<GradientsParams, AmpError> {
        let keeps_values = self.half.is_none();
        let (value, mut notes) = self.forward(DryRun {
            keeps_values,
            ..DryRun::at(self.amp, at_border)
        })?;
        if keeps_values {
            self.half = Some(Forward::of(&value, &mut notes));
        }
        let backward = || value.mul_scalar(by_hand).backward();
        // With fusion, two dtypes that meet in a product of matrices are refused on the way back alone.
        let grads = catch_unwind(AssertUnwindSafe(backward)).map_err(|panic| {
            let last = self.amp.live().last_read();
            scope::dtype_clash(panic, self.amp.dtype().into(), last, true)
        })?;
        self.amp.check_notes(&notes)?;
        Ok(GradientsParams::from_grads(grads, self.model))
    }

    fn forward(&mut self, dry: DryRun) -> Result<(Tensor<D>, DryRunNotes), AmpError> {
        let dry = Arc::new(DryRun {
            in_learner: self.amp.is_in_learner(),
            seed: dry.seed.or(Some(SEED)),
            ..dry
        });
        let value = dry_loss(&dry, self.model, &mut self.loss)?;
        Ok((value, dry.take()))
    }

    /// The loss in f32, with the random numbers of this draw; none where it cannot be computed.
    fn in_f32(&mut self, draw: u64) -> Option<(Tensor<D>, Forward)> {
        attempt(|| {
            let (value, mut notes) = self.forward(DryRun {
                dtype: Some(FloatDType::F32),
                seed: Some(SEED + draw),
                keeps_values: true,
                ..DryRun::at(self.amp, 1.0)
            })?;
            let forward = Forward::of(&value, &mut notes);
            Ok((value, forward))
        })
    }

    /// Refuses a loss that is far from that in f32, and warns of what is zero in half precision alone.
    fn compare_with_f32(
        &mut self,
        half: &Forward,
        entries: &[Entry],
        grads: &GradientsParams,
        scale: f64,
    ) -> Result<(), AmpError> {
        let dtype = self.amp.dtype().into();
        let in_f32 = is_half(dtype).then(|| self.in_f32(0)).flatten();
        let Some((value, full)) = in_f32 else {
            return Ok(());
        };
        half.warn_of_zeros(&full, dtype);
        let full_grads = GradientsParams::from_grads(value.backward(), self.model);
        let higher = || self.gradients(scale * HIGHER, 1.0);
        warn_of_zero_gradients(entries, [grads, &full_grads], dtype, higher)?;
        half.refuse_far(&full, dtype, |draw| Some(self.in_f32(draw)?.1))
    }

    /// Finite gradients at this loss scale, or at the highest below.
    fn finite(
        &mut self,
        mut scale: f64,
    ) -> Result<(f64, GradientsParams, GradientStatus), AmpError> {
        let lowest = (scale * 2f64.powi(-MAX_HALVINGS)).max(2f64.powi(-25));
        loop {
            let grads = self.gradients(scale, 1.0)?;
            let status = inspect(&grads, self.model)?;
            let Some(parameter) = status.overflow_parameter() else {
                return Ok((scale, grads, status));
            };
            if scale <= lowest {
                return Err(AmpError::GradientsNotFinite {
                    parameter: parameter.to_string(),
                });
            }
            scale /= 2.0;
        }
    }
}

/// A loss, in f32, from scopes that differ from those of a step. Takes the error out of a panic of `autocast`. Leaves no trace: running
/// statistics are restored.
///
/// # Errors
///
/// As [`MixedPrecision::check`], of what is refused before there are gradients.
pub fn dry_loss<M: Module, const D: usize>(
    dry: &Arc<DryRun>,
    model: &M,
    loss: impl FnOnce(&M) -> Tensor<D>,
) -> Result<Tensor<D>, AmpError> {
    let live = dry.amp.live();
    let opened = live.opened();
    let forward = || {
        // Not before: Burn draws parameters when they are read first, which has happened now.
        if let Some(seed) = dry.seed {
            model.devices().iter().for_each(|device| device.seed(seed));
        }
        catch_unwind(AssertUnwindSafe(|| loss(model)))
    };
    let forward = || scope::in_dry_run(dry, forward);
    let loss = match unchanged(model, forward) {
        (_, Some(error)) => return Err(error),
        (Ok(loss), None) => loss,
        // Outside of all scopes: f16 that was carried out, or f32 that was expected there.
        (Err(panic), None) => return Err(scope::dtype_clash(panic, DType::F32, None, true)),
    };
    let dtype = loss.dtype();
    if live.opened() == opened {
        return Err(AmpError::NoScope);
    }
    if is_half(dtype) {
        return Err(AmpError::border(BorderFault::Loss, None, dtype));
    }
    match loss.is_tracked() {
        true => Ok(loss),
        false => Err(AmpError::NoGradients { gradients: 0 }),
    }
}

/// The parameter whose gradients differ most, if any does: those of the first, and those of the second divided by `scale`. The first of equals.
fn leak(
    entries: &[Entry],
    first: &GradientsParams,
    second: &GradientsParams,
    scale: f64,
) -> Option<AmpError> {
    let (mut worst, mut most) = (None, 0.0);
    for entry in entries {
        let of = |grads| entry.get(grads).map(AnyTensor::into_data);
        let (Some(first), Some(second)) = (of(first), of(second)) else {
            continue;
        };
        let is_other = |(first, second): &(f64, f64)| {
            let (first, second) = (*first as f32, *second as f32 / scale as f32);
            first != second && (first.abs() >= SMALL || second.abs() >= SMALL)
        };
        let pairs = first.iter::<f64>().zip(second.iter::<f64>());
        let (differ, values) = (pairs.filter(is_other).count(), first.num_elements());
        let share = differ as f64 / values as f64;
        if share > most {
            most = share;
            worst = Some(AmpError::BorderLeak {
                parameter: entry.path.clone(),
                differ,
                values,
            });
        }
    }
    worst
}
