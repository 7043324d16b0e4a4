//! A dry run for a new program: [`MixedPrecision::check`].

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{DType, Tensor, TensorData},
};
use burn_amp_kernels::panic_message;
use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use crate::{
    dry_run::{DryRun, Noted, PartFactors},
    dtype::is_half,
    entries::{Entries, Entry},
    error::AmpError,
    gradient_status::GradientStatus,
    mixed_precision::MixedPrecision,
    running_statistics::RunningStatistics,
    scope,
    unscale::inspect,
};

/// How often the scale is halved to find one at which nothing overflows.
const MAX_HALVINGS: u32 = 40;
/// Below this, f32 itself rounds: a scale moves gradients out of there.
const SMALL: f32 = 1e-30;
/// How far gradients may move with the factors of parts. With each they are rounded at other places, where they are small.
const MOVED: f64 = 1.0 / 16.0;
/// How far they may move with the loss scale, where half precision holds them.
const STEADY: f64 = 1.0 / 64.0;

/// The gradients with this loss scale at the border, this factor of the loss, and these factors of parts.
type Run<'a> = dyn FnMut(f64, f64, PartFactors) -> Result<GradientsParams, AmpError> + 'a;

impl MixedPrecision {
    /// Checks a new program before it trains: runs the loss and its backward pass, and looks for mistakes.
    ///
    /// `loss` computes a loss as the training loop does, with [`autocast`](Self::autocast) inside. It runs three times or
    /// more. The gradients with the loss scale at the border are compared, bit for bit, with those of a loss that is scaled by
    /// hand: a difference shows a tensor that enters or leaves a scope without being scaled (cast by hand, captured, carried out).
    /// With parts that are [`rescaled`](crate::rescaled) it runs three times more, with half their factors and without them, and compares how
    /// large gradients are. A leak is not seen where half precision loses the gradients without the factors, and is small with them.
    ///
    /// A free [`autocast`](crate::autocast) opens a scope here if it does so in the training: once this handle is in a `Learner`.
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
    /// [`AmpError::HalfPrecisionLoss`] for a loss in half precision, and for one that is taken inside `autocast`: a vector of one value that
    /// leaves it. [`AmpError::TwoPrecisions`] if gradients pass through scopes of another handle too. [`AmpError::GradientsNotFinite`] if they overflow at every
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
        RunningStatistics::unchanged(model, || self.compare(model, &mut loss))
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
        let has_parts = Cell::new(false);
        let mut run = |at_border: f64, by_hand: f64, parts: PartFactors| {
            for device in model.devices() {
                device.seed(0x5ca1e);
            }
            let dry = DryRun {
                parts,
                in_learner: self.is_in_learner(),
                ..DryRun::at(at_border)
            };
            let (grads, noted) = self.dry_run(dry, by_hand, model, loss)?;
            has_parts.set(has_parts.get() || noted.has_parts);
            self.refuse_noted(&noted).map(|()| grads)
        };
        let (scale, grads, status) = finite(&mut run, scale, PartFactors::Own, model)?;
        if status.gradients() == 0 || status.is_all_zero() {
            return Err(AmpError::NoGradients {
                gradients: status.gradients(),
            });
        }
        let by_hand = run(1.0, scale, PartFactors::Own)?;
        let found = match leak(&grads, &by_hand, scale, model) {
            None if has_parts.get() => leak_of_parts(&mut run, &grads, scale, model)?,
            found => found,
        };
        let Some(leak) = found else {
            return Ok(status);
        };
        // A device that adds in another order each time proves nothing.
        let again = run(scale, 1.0, PartFactors::Own)?;
        if self::leak(&grads, &again, 1.0, model).is_some() {
            log::warn!(
                "the same loss gives different gradients each time, so tensors that enter or leave `autocast` without the loss scale cannot be found"
            );
            return Ok(status);
        }
        Err(leak)
    }

    /// Refuses what came out of the scopes of a dry run.
    fn refuse_noted(&self, noted: &Noted) -> Result<(), AmpError> {
        let dtype = self.dtype().into();
        if noted.is_loss_inside && is_half(dtype) {
            return Err(AmpError::HalfPrecisionLoss { dtype });
        }
        let mut others = noted.handles.iter().filter(|other| !other.is(self));
        match others.any(Self::is_scaled) {
            true => Err(AmpError::TwoPrecisions),
            false => Ok(()),
        }
    }

    /// The gradients of a loss that is multiplied `by_hand`, from scopes that differ from those of a step, and what these have noted.
    pub(crate) fn dry_run<M: Module, const D: usize>(
        &self,
        dry: DryRun,
        by_hand: f64,
        model: &M,
        loss: &mut impl FnMut(&M) -> Tensor<D>,
    ) -> Result<(GradientsParams, Noted), AmpError> {
        let notes = dry.notes.clone();
        let value = self.dry_loss(dry, || loss(model))?;
        let grads = value.mul_scalar(by_hand).backward();
        Ok((GradientsParams::from_grads(grads, model), notes.take()))
    }

    /// The loss, in f32, from scopes that differ from those of a step. Takes the error out of a panic of `autocast`.
    pub(crate) fn dry_loss<const D: usize>(
        &self,
        dry: DryRun,
        loss: impl FnOnce() -> Tensor<D>,
    ) -> Result<Tensor<D>, AmpError> {
        let opened = self.live().opened();
        let forward = || catch_unwind(AssertUnwindSafe(loss));
        let loss = match scope::in_dry_run(self, dry, forward) {
            (_, Some(error)) => return Err(error),
            (Ok(loss), None) => loss,
            (Err(panic), None) => {
                let message = panic_message(&*panic);
                if !scope::is_dtype_clash(message) {
                    resume_unwind(panic);
                }
                // Outside of all scopes: f16 that was carried out, or f32 that was expected there.
                return Err(AmpError::DTypeClash {
                    dtype: DType::F32,
                    parameter: None,
                    message: message.to_string(),
                });
            }
        };
        let dtype = loss.dtype();
        if self.live().opened() == opened {
            return Err(AmpError::NoScope);
        }
        if is_half(dtype) {
            return Err(AmpError::HalfPrecisionLoss { dtype });
        }
        match loss.is_tracked() {
            true => Ok(loss),
            false => Err(AmpError::NoGradients { gradients: 0 }),
        }
    }
}

/// How a parameter's gradient differs in two runs.
struct Difference {
    /// By what the parameters are compared.
    by: f64,
    /// How many of the values differ.
    differ: usize,
    values: usize,
}

/// The leak at the parameter that differs most, the first of equals.
fn worst_of(
    entries: &[Entry],
    difference: impl Fn(&Entry) -> Option<Difference>,
) -> Option<AmpError> {
    let found = (entries.iter()).filter_map(|entry| Some((difference(entry)?, entry)));
    let worst = found.reduce(|worst, other| match other.0.by > worst.0.by {
        true => other,
        false => worst,
    });
    let (Difference { differ, values, .. }, entry) = worst?;
    Some(AmpError::BorderLeak {
        parameter: entry.path.clone(),
        differ,
        values,
    })
}

/// A parameter's gradients in two runs.
fn both(
    first: &GradientsParams,
    second: &GradientsParams,
    entry: &Entry,
) -> Option<[TensorData; 2]> {
    let (first, second) = (entry.get(first)?, entry.get(second)?);
    Some([first.into_data(), second.into_data()])
}

/// The parameter whose gradients differ most, if any does: those of the first, and those of the second divided by `scale`.
fn leak<M: Module>(
    first: &GradientsParams,
    second: &GradientsParams,
    scale: f64,
    model: &M,
) -> Option<AmpError> {
    let entries = match Entries::of(first, model) {
        Ok(found) => found.gradients,
        Err(error) => return Some(error),
    };
    worst_of(&entries, |entry| {
        let [first, second] = both(first, second, entry)?;
        let (differ, values) = count_differing(first.iter(), second.iter(), scale as f32);
        let by = differ as f64 / values as f64;
        (differ > 0).then_some(Difference { by, differ, values })
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

/// Finite gradients at this loss scale, or at the highest below.
fn finite<M: Module>(
    run: &mut Run<'_>,
    mut scale: f64,
    parts: PartFactors,
    model: &M,
) -> Result<(f64, GradientsParams, GradientStatus), AmpError> {
    let mut halvings = 0;
    loop {
        let grads = run(scale, 1.0, parts)?;
        let status = inspect(&grads, model)?;
        let Some(parameter) = status.overflow_parameter() else {
            return Ok((scale, grads, status));
        };
        if halvings == MAX_HALVINGS || scale < 2f64.powi(-24) {
            return Err(AmpError::GradientsNotFinite {
                parameter: parameter.to_string(),
            });
        }
        halvings += 1;
        scale /= 2.0;
    }
}

/// As [`leak`], of gradients with other factors of parts, which round at other places: how much of them is in `grads`.
fn leak_of_parts<M: Module>(
    run: &mut Run<'_>,
    grads: &GradientsParams,
    scale: f64,
    model: &M,
) -> Result<Option<AmpError>, AmpError> {
    let half = run(scale, 1.0, PartFactors::Half)?;
    // Of a large factor, a half shows next to nothing. Without it all of a leak is there, where half precision holds the gradients.
    let without = match finite(run, scale, PartFactors::One, model) {
        Ok((scale, without, _)) => Some((without, run(scale / 16.0, 1.0, PartFactors::One)?)),
        Err(AmpError::GradientsNotFinite { .. }) => None,
        Err(error) => return Err(error),
    };
    let entries = Entries::of(grads, model)?.gradients;
    let difference = |entry: &Entry| {
        let held = without.as_ref().filter(|(without, lower)| {
            moved(without, lower, entry).is_some_and(|moved| moved.by <= STEADY)
        });
        let others = [Some(&half), held.map(|(without, _)| without)];
        let moves = (others.into_iter().flatten()).filter_map(|other| moved(grads, other, entry));
        let most = moves.max_by(|a, b| a.by.total_cmp(&b.by));
        most.filter(|moved| moved.by > MOVED)
    };
    Ok(worst_of(&entries, difference))
}

/// How far a gradient of the first has moved in the second; none of a gradient of zeros.
fn moved(first: &GradientsParams, second: &GradientsParams, entry: &Entry) -> Option<Difference> {
    let [first, second] = both(first, second, entry)?;
    let pairs = || first.iter::<f64>().zip(second.iter::<f64>());
    let (square, product) = pairs().fold((0.0, 0.0), |(square, product), (first, second)| {
        (square + first * first, product + first * second)
    });
    let (differ, values) = count_differing(first.iter(), second.iter(), 1.0);
    let by = (product / square - 1.0).abs();
    (!by.is_nan()).then_some(Difference { by, differ, values })
}
