//! A dry run for a new program: [`MixedPrecision::check`].

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use burn_amp_kernels::panic_message;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    cast::DryRun,
    dtype::is_half,
    entries::{Entries, Entry},
    error::AmpError,
    gradient_status::GradientStatus,
    mixed_precision::MixedPrecision,
    rank::with_rank,
    running_statistics::RunningStatistics,
    scope,
    unscale::try_inspect,
};

/// How often the scale is halved to find one at which nothing overflows.
const MAX_HALVINGS: u32 = 40;
/// Below this, f32 itself rounds: a scale moves gradients out of there.
const SMALL: f32 = 1e-30;
/// How far gradients may move with the factors of parts. With each they are rounded at other places, where they are small.
const MOVED: f64 = 1.0 / 16.0;

impl MixedPrecision {
    /// Checks a new program before it trains: runs the loss and its backward pass, and looks for mistakes.
    ///
    /// `loss` computes a loss as the training loop does, with [`autocast`](Self::autocast) inside. It runs three times or
    /// more. The gradients with the loss scale at the border are compared, bit for bit, with those of a loss that is scaled by
    /// hand: a difference shows a tensor that enters or leaves a scope without being scaled (cast by hand, captured, carried out).
    /// With parts that are [`rescaled`](crate::rescaled) it runs once more, with half their factors, and compares how large gradients are.
    /// Running statistics are put back before this returns. Seeds the device's random numbers. Waits for the device.
    ///
    /// Returns the status of the gradients at the present loss scale, or at the highest one below at which they are finite.
    ///
    /// ```
    /// use burn::{module::Module, nn::LinearConfig, tensor::{Device, Distribution, FloatDType, Tensor}};
    /// use burn_amp::{AmpError, MixedPrecision};
    ///
    /// let device = Device::flex().autodiff();
    /// let amp = MixedPrecision::f16();
    /// let model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
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
    /// [`AmpError::BorderLeak`], which names the parameter with the most bits that differ. [`AmpError::DTypeClash`] and the
    /// other errors of [`try_autocast`](Self::try_autocast). [`AmpError::NoScope`] if no scope of this was opened,
    /// [`AmpError::HalfPrecisionLoss`] for a loss in half precision. [`AmpError::GradientsNotFinite`] if they overflow at every
    /// scale, [`AmpError::NoGradients`] if there is none, or all are zero.
    ///
    /// # Panics
    ///
    /// Where `loss` panics for another reason, or its result has no autodiff graph.
    pub fn check<M: Module, const D: usize>(
        &self,
        model: &M,
        mut loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<GradientStatus, AmpError> {
        let mut statistics = RunningStatistics::default();
        statistics.keep(model);
        let opened = self.live().opened();
        let result = self.compare(model, &mut loss);
        statistics.restore(model);
        match result {
            Ok(_) if self.live().opened() == opened => Err(AmpError::NoScope),
            result => result,
        }
    }

    fn compare<M: Module, const D: usize>(
        &self,
        model: &M,
        loss: &mut impl FnMut(&M) -> Tensor<D>,
    ) -> Result<GradientStatus, AmpError> {
        // A power of two, so that it can be taken out again without rounding.
        let mut scale = f64::from(self.loss_scale().max(1.0)).log2().floor().exp2();
        if !self.is_scaled() {
            scale = 65536.0;
        }
        let has_parts = Arc::new(AtomicBool::new(false));
        let mut run = |at_border: f64, by_hand: f64, parts: f64| {
            for device in model.devices() {
                device.seed(0x5ca1e);
            }
            let dry = DryRun {
                parts,
                has_parts: has_parts.clone(),
                ..DryRun::at(at_border)
            };
            self.dry_run(dry, by_hand, model, loss)
        };
        let mut halvings = 0;
        let (grads, status) = loop {
            let grads = run(scale, 1.0, 1.0)?;
            let status = try_inspect(&grads, model)?;
            let Some(parameter) = status.overflow_parameter() else {
                break (grads, status);
            };
            halvings += 1;
            if halvings > MAX_HALVINGS || scale < 2f64.powi(-24) {
                return Err(AmpError::GradientsNotFinite {
                    parameter: parameter.to_string(),
                });
            }
            scale /= 2.0;
        };
        if status.gradients() == 0 || status.is_all_zero() {
            return Err(AmpError::NoGradients {
                gradients: status.gradients(),
            });
        }
        let by_hand = run(1.0, scale, 1.0)?;
        let found = match leak(&grads, &by_hand, scale, model) {
            None if has_parts.load(Ordering::Relaxed) => {
                leak_of_parts(&grads, &run(scale, 1.0, 0.5)?, model)
            }
            found => found,
        };
        let Some(leak) = found else {
            return Ok(status);
        };
        // A device that adds in another order each time proves nothing.
        if self::leak(&grads, &run(scale, 1.0, 1.0)?, 1.0, model).is_some() {
            log::warn!(
                "the same loss gives different gradients each time, so tensors that enter or leave `autocast` without the loss scale cannot be found"
            );
            return Ok(status);
        }
        Err(leak)
    }

    /// The gradients of a loss that is multiplied `by_hand`, from scopes that differ from those of a step.
    pub(crate) fn dry_run<M: Module, const D: usize>(
        &self,
        dry: DryRun,
        by_hand: f64,
        model: &M,
        loss: &mut impl FnMut(&M) -> Tensor<D>,
    ) -> Result<GradientsParams, AmpError> {
        let value = self.dry_loss(dry, model, loss)?;
        if is_half(value.dtype()) {
            return Err(AmpError::HalfPrecisionLoss {
                dtype: value.dtype(),
            });
        }
        if !value.is_tracked() {
            return Err(AmpError::NoGradients { gradients: 0 });
        }
        let grads = value.mul_scalar(by_hand).backward();
        Ok(GradientsParams::from_grads(grads, model))
    }
}

impl MixedPrecision {
    /// The loss, from scopes that differ from those of a step.
    pub(crate) fn dry_loss<M: Module, const D: usize>(
        &self,
        dry: DryRun,
        model: &M,
        loss: &mut impl FnMut(&M) -> Tensor<D>,
    ) -> Result<Tensor<D>, AmpError> {
        checked(self, dry, || loss(model))
    }
}

/// Runs a forward pass with another scale at the border, and takes the error out of a panic of `autocast`.
fn checked<R>(amp: &MixedPrecision, dry: DryRun, work: impl FnOnce() -> R) -> Result<R, AmpError> {
    let checking = scope::Checking::new(amp, dry);
    let result = catch_unwind(AssertUnwindSafe(work));
    match (checking.error(), result) {
        (Some(error), _) => Err(error),
        (None, Ok(value)) => Ok(value),
        (None, Err(panic)) => {
            let message = panic_message(&*panic);
            match scope::is_dtype_clash(message) {
                // Outside of all scopes: f16 that was carried out, or f32 that was expected there.
                true => Err(AmpError::DTypeClash {
                    dtype: DType::F32,
                    parameter: None,
                    message: message.to_string(),
                }),
                false => resume_unwind(panic),
            }
        }
    }
}

/// The parameter whose gradients differ most, if any does: those of the first, and those of the second divided by `scale`.
fn leak<M: Module>(
    first: &GradientsParams,
    second: &GradientsParams,
    scale: f64,
    model: &M,
) -> Option<AmpError> {
    let entries = match Entries::of(first, model) {
        Ok(found) => found.into_gradients(),
        Err(error) => return Some(error),
    };
    let mut worst: Option<(usize, usize, &Entry)> = None;
    for entry in &entries {
        let (differ, values) = with_rank!(entry.rank, D => {
            let first = first.get::<D>(entry.id)?;
            let second = second.get::<D>(entry.id)?;
            count_differing(first.into_data().iter::<f32>(), second.into_data().iter::<f32>(), scale as f32)
        }, _rank => (0, 1));
        let share = |(differ, values, _): &(usize, usize, &Entry)| *differ as f64 / *values as f64;
        if differ > 0
            && worst
                .as_ref()
                .is_none_or(|w| share(&(differ, values, entry)) > share(w))
        {
            worst = Some((differ, values, entry));
        }
    }
    worst.map(|(differ, values, entry)| AmpError::BorderLeak {
        parameter: entry.path.clone(),
        differ,
        values,
    })
}

fn count_differing(
    first: impl Iterator<Item = f32>,
    second: impl Iterator<Item = f32>,
    scale: f32,
) -> (usize, usize) {
    let (mut differ, mut values) = (0, 0);
    for (first, second) in first.zip(second) {
        values += 1;
        let second = second / scale;
        let same = first == second || (first.abs() < SMALL && second.abs() < SMALL);
        differ += usize::from(!same);
    }
    (differ, values)
}

/// As [`leak`], of gradients with other factors of parts, which round at other places: how much of the first is in the second.
fn leak_of_parts<M: Module>(
    first: &GradientsParams,
    second: &GradientsParams,
    model: &M,
) -> Option<AmpError> {
    let entries = match Entries::of(first, model) {
        Ok(found) => found.into_gradients(),
        Err(error) => return Some(error),
    };
    let moved = |entry: &Entry| {
        with_rank!(entry.rank, D => {
            let (first, second) = (first.get::<D>(entry.id)?, second.get::<D>(entry.id)?);
            let (first, second) = (first.into_data(), second.into_data());
            let pairs = || first.iter::<f64>().zip(second.iter::<f64>());
            let (square, product) = pairs().fold((0.0, 0.0), |(square, product), (first, second)| {
                (square + first * first, product + first * second)
            });
            let (differ, values) = count_differing(first.iter::<f32>(), second.iter::<f32>(), 1.0);
            let moved = (product / square - 1.0).abs();
            (moved > MOVED).then_some((moved, differ, values))
        }, _rank => None)
    };
    let moved = entries
        .iter()
        .filter_map(|entry| Some((moved(entry)?, entry)));
    let worst = moved.max_by(|(a, _), (b, _)| a.0.total_cmp(&b.0));
    worst.map(|((_, differ, values), entry)| AmpError::BorderLeak {
        parameter: entry.path.clone(),
        differ,
        values,
    })
}
