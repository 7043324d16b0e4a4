//! The first loss scale, from one backward pass before the first step: [`MixedPrecision::calibrate`].

use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
use std::sync::Arc;

use crate::border::{DryRun, MixedPrecision};
use crate::error::{AmpError, short};
use crate::gradients::{GradientStatus, inspect};
use crate::{check::dry_loss, scale::loss_scale::LossScale};
use crate::{optimizer::ScaledOptimizer, update::module_optim::ModuleOptim};

/// The scale stays so many binades below the lowest at which something overflows.
const HEADROOM: i32 = 3;
/// The exponent at which the search begins, as PyTorch's scale does, the length of a step down, and the exponent at which it ends.
const FIRST: i32 = 16;
const STEP: i32 = 8;
const LOWEST: i32 = -24;
/// So that the scale has an inverse in f32.
const HIGHEST: i32 = 126;

impl MixedPrecision {
    /// Sets the loss scale from a backward pass that is thrown away: before the first step, in place of PyTorch's blind 65536.
    ///
    /// `loss` computes a loss as the training loop does, on a typical batch, with [`autocast`](Self::autocast) inside (or in the model, for a
    /// `Learner`). Gradients are measured at every cast between half precision and f32: those of the activations where they enter
    /// and leave scopes, [`in_f32`](crate::in_f32) and [`rescaled`](crate::rescaled) regions, and those of the parameters. From the largest of them comes a scale just
    /// below overflow, which a second pass tries, because what overflows between two casts is seen only then; it is lowered until nothing
    /// overflows. The result is three binades (a factor of 8) below that: a power of two, within `min_scale` and `max_scale`.
    ///
    /// Returns the new scale. A static scale is set too. Without a loss scale nothing runs, and it is 1. Load records after this: they bring their own scale.
    ///
    /// Same model, same batch, same result. It leaves no trace: running statistics are restored, no step is counted, the factors
    /// of regions stay. But dropout draws its random numbers; seed the device afterwards if that matters. Waits for the device.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
    /// use burn_amp::MixedPrecision;
    ///
    /// let device = Device::flex().autodiff();
    /// let amp = MixedPrecision::f16();
    /// let model = amp.attach(LinearConfig::new(4, 2).init(&device));
    /// let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
    ///
    /// let scale = amp.calibrate(&model, |m| amp.autocast(batch.clone(), |x| m.forward(x)).square().mean())?;
    /// assert_eq!(amp.loss_scale(), scale);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The scale stays as it was. [`AmpError::GradientsNotFinite`] if gradients overflow even at 2^-24 (a scale below 1 is set, and warned of),
    /// [`AmpError::NoGradients`] if there is none, the loss was computed without autodiff, or all are zero. [`AmpError::NoScope`],
    /// [`AmpError::Border`] and the rest as [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// Where `loss` panics for another reason.
    pub fn calibrate<M: Module, const D: usize>(
        &self,
        model: &M,
        mut loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<f32, AmpError> {
        if !self.is_scaled() {
            return Ok(self.loss_scale());
        }
        let live = self.live();
        // Those in flight move the scale of before.
        live.resolve(true);
        let schedule = live.schedule();
        let scale = search(&schedule, |scale| {
            let dry = Arc::new(DryRun {
                is_measured: true,
                ..DryRun::at(self, scale)
            });
            let grads = dry_loss(&dry, model, &mut loss)?.backward();
            let status = inspect(&GradientsParams::from_grads(grads, model), model)?;
            let (largest, overflows) = dry.take().measured();
            Ok(PassResult {
                // Casts of Burn's own operations are not watched.
                max_abs: largest.unwrap_or(status.max_abs() * scale),
                overflow: overflows || status.has_overflow(),
                status,
            })
        })?;
        live.change(|schedule| schedule.with_scale("loss_scale", scale))?;
        Ok(self.loss_scale())
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Sets the loss scale as [`MixedPrecision::calibrate`] does; on several ranks to the lowest that is found on any.
    ///
    /// # Errors
    ///
    /// As [`MixedPrecision::calibrate`], on all ranks where it is one's. [`AmpError::NoScope`] for an optimizer whose scale no `MixedPrecision` has.
    ///
    /// # Panics
    ///
    /// Where `loss` panics for another reason.
    pub fn calibrate<M: Module, const D: usize>(
        &mut self,
        model: &M,
        loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<f32, AmpError> {
        let amp = self.scaler().precision().cloned();
        let found = amp.ok_or(AmpError::NoScope);
        let found = found.and_then(|amp| amp.calibrate(model, loss));
        let Some(ranks) = &self.scaler().ranks else {
            return found;
        };
        let found = found.inspect_err(|error| ranks.fail(ranks.votes(), error))?;
        let scale = ranks.lowest(found)?;
        self.scaler_mut().set_loss_scale(scale.into())?;
        Ok(scale)
    }
}

/// The findings of a backward pass.
struct PassResult {
    max_abs: f64,
    overflow: bool,
    status: GradientStatus,
}

/// The scale by passes whose gradients are measured at the parameters alone.
pub fn search_scale(
    schedule: &LossScale,
    mut run: impl FnMut(f64) -> Result<GradientStatus, AmpError>,
) -> Result<f64, AmpError> {
    search(schedule, |scale| {
        let status = run(scale)?;
        Ok(PassResult {
            max_abs: status.max_abs(),
            overflow: status.has_overflow(),
            status,
        })
    })
}

/// The scale that is [`HEADROOM`] below overflow, as far as a schedule can reach it.
fn search(
    schedule: &LossScale,
    mut run: impl FnMut(f64) -> Result<PassResult, AmpError>,
) -> Result<f64, AmpError> {
    let exponent = highest(|exponent| run(f64::from(exponent).exp2()))? - HEADROOM;
    let scale = schedule.clamped(f64::from(exponent).exp2() as f32).into();
    match exponent < 0 {
        true => warn!(
            "gradients leave no room for a loss scale of 1 in half precision: the loss is large, or its gradients are. The loss scale is {}",
            short(scale)
        ),
        false => info!("the loss scale starts at {}", short(scale)),
    }
    Ok(scale)
}

/// The exponent of the highest scale at which nothing overflows.
fn highest(mut run: impl FnMut(i32) -> Result<PassResult, AmpError>) -> Result<i32, AmpError> {
    let mut lowest = FIRST;
    let found = loop {
        let found = run(lowest)?;
        if !found.overflow {
            break found;
        }
        if lowest <= LOWEST {
            let parameter = found.status.overflow_parameter().unwrap_or("?");
            return Err(AmpError::GradientsNotFinite {
                parameter: parameter.to_string(),
            });
        }
        lowest -= STEP;
    };
    let gradients = found.status.gradients();
    if gradients == 0 || found.max_abs == 0.0 {
        return Err(AmpError::NoGradients { gradients });
    }
    // All that is below 2^16 is finite in f16.
    let binades = 15 - found.max_abs.log2().floor() as i32;
    let (mut exponent, mut status) = ((lowest + binades).min(HIGHEST), found.status);
    while exponent > lowest {
        let found = run(exponent)?;
        if !found.overflow {
            status = found.status;
            break;
        }
        exponent -= 1;
    }
    match status.is_all_zero() {
        true => Err(AmpError::NoGradients { gradients }),
        false => Ok(exponent),
    }
}
