//! Typed gradients: [`ScaledGradients`] carry the loss scale, [`UnscaledGradients`] do not.

pub(crate) mod clip;
mod culprit;
pub(crate) mod entries;
pub(crate) mod pass;
pub(crate) mod running_statistics;
pub(crate) mod status;
pub(crate) mod unscale;

pub(crate) use clip::{Factors, GradientClip};
pub(crate) use entries::{Entries, Entry, handles, measure, summarize};
pub(crate) use pass::Pass;
pub(crate) use running_statistics::unchanged;
pub(crate) use status::GradientStatus;
pub(crate) use unscale::inspect;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{GradientsParams, MultiGradientsParams};
use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{TensorStatus, UnsupportedDType};
use std::sync::{Arc, OnceLock};
use std::{collections::HashMap, ops::Add};

use crate::values::any_tensor::{put_gradient, take_gradient};
use crate::values::{AnyTensor, Parameter, parameters, with_rank, working_dtype};
use crate::{error::AmpError, scale::finding::Finding, scale::loss_scale::SkipCause};

/// Gradients of a scaled loss: multiplied by the loss scale, possibly infinite.
///
/// Made by [`GradScaler::backward`](crate::GradScaler::backward) and [`GradScaler::scaled`](crate::GradScaler::scaled) alone:
/// a plain [`GradientsParams`] is unscaled. [`GradScaler::unscale`](crate::GradScaler::unscale) turns them into
/// [`UnscaledGradients`].
#[derive(Debug)]
pub struct ScaledGradients {
    pub(crate) params: GradientsParams,
    pub(crate) scale: f32,
}

impl ScaledGradients {
    /// Gradients of a loss that was multiplied by a factor.
    #[doc(hidden)]
    pub fn new(params: GradientsParams, scale: f32) -> Self {
        Self { params, scale }
    }

    /// The loss scale that these gradients carry.
    pub fn loss_scale(&self) -> f32 {
        self.scale
    }

    /// Burn's own container of the still scaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to change scaled gradients in place.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        &mut self.params
    }

    /// Burn's own container of the scaled gradients. The scale is dropped.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }
}

/// Gradients after unscaling, with what the same pass has found in them.
///
/// f32 for f16, bf16 and f32 parameters, f64 for f64 ones, unless
/// [`parameter_dtype_gradients`](crate::GradScalerConfig::parameter_dtype_gradients) is set. A disabled scaler does not change
/// them. They may be read and changed (clipped, say) before
/// [`GradScaler::step`](crate::GradScaler::step); whether the step is skipped was decided when they were
/// unscaled, or when [`clip`](Self::clip) measured them again after a change. There is no way back to
/// [`ScaledGradients`], so unscaling twice does not compile.
#[derive(Debug)]
pub struct UnscaledGradients {
    params: GradientsParams,
    pub(crate) entries: Vec<Entry>,
    pub(crate) status: Box<GradientStatus>,
    /// What is in gradients that nobody has tested, once somebody asks.
    asked: OnceLock<Box<(Vec<Entry>, GradientStatus)>>,
    /// Whether what was found in each gradient is known: they were measured, and not changed since.
    pub(crate) is_measured: bool,
    /// Whether an overflow skips the step: not with a disabled scaler, whatever was measured.
    tested: bool,
    /// What moves the loss scale: the gradients as they were when they were tested.
    pub(crate) finding: Finding,
    /// While one of these lives, its scaler waits for what becomes of the gradients.
    pub(crate) pending: Vec<Arc<Finding>>,
}

impl UnscaledGradients {
    /// Gradients that were measured and tested; not those of a disabled scaler.
    pub(crate) fn new(params: GradientsParams, entries: Vec<Entry>, tested: bool) -> Self {
        let status = summarize(&entries);
        let finding = Finding {
            is_empty: entries.is_empty(),
            overflow: status.overflow.clone(),
            cause: SkipCause::Scale,
            is_resolved: false,
            measures: status.measures(),
            rejected: None,
        };
        Self {
            params,
            entries,
            status: Box::new(status),
            asked: OnceLock::new(),
            is_measured: tested,
            tested,
            finding,
            pending: Vec::new(),
        }
    }

    /// The parameters whose gradients overflow.
    pub(crate) fn overflows(&self) -> impl Iterator<Item = &str> {
        self.overflow_counts().map(|(path, _)| path)
    }

    /// The same, and how many of their values are not finite.
    #[doc(hidden)]
    pub fn overflow_counts(&self) -> impl Iterator<Item = (&str, u64)> {
        let entries = self.entries.iter().filter(|_| self.is_measured);
        let counts = entries.map(|entry| (entry.path.as_str(), entry.status.non_finite));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Whether a value of those that overflow is NaN. Waits for the device.
    pub(crate) fn has_nan(&self) -> bool {
        let bad = self
            .entries
            .iter()
            .filter(|entry| entry.status.non_finite > 0);
        let mut values = bad.filter_map(|entry| entry.get(&self.params)?.flat());
        values.any(|values| values.is_nan().any().into_scalar::<bool>())
    }

    /// What is in each gradient, in the order of the entries. If that is not known, waits for the device, and makes the
    /// status that of the gradients as they are. An error if a program has put in one of another shape, too.
    pub(crate) fn measured(&mut self) -> Result<Vec<TensorStatus>, AmpError> {
        if !self.is_measured {
            let (entries, status) = match self.asked.take() {
                Some(asked) => *asked,
                None => self.measure()?,
            };
            self.entries = entries;
            *self.status = GradientStatus {
                above: self.finding.measures.above,
                ..status
            };
            self.find_overflow();
            self.is_measured = true;
        }
        Ok(self.entries.iter().map(|entry| entry.status).collect())
    }

    /// What is in each gradient, and in all of them. Waits for the device.
    fn measure(&self) -> Result<(Vec<Entry>, GradientStatus), AmpError> {
        let mut entries = self.entries.clone();
        (entries.iter_mut()).try_for_each(|entry| entry.check(&self.params))?;
        measure(&self.params, &mut entries, None, Vec::new())?;
        let status = summarize(&entries);
        Ok((entries, status))
    }

    /// What was found in them is that of other gradients from here on.
    fn forget_measures(&mut self) {
        self.is_measured = false;
        self.asked.take();
    }

    /// Whether their step is skipped for an overflow: not with a disabled scaler, whatever is in them.
    pub(crate) fn skips(&self) -> bool {
        self.finding.overflow.is_some()
    }

    /// After the status has changed.
    fn find_overflow(&mut self) {
        let overflow = self.status.overflow.as_ref();
        self.finding.overflow = overflow.filter(|_| self.tested).cloned();
    }

    /// Multiplies some of the gradients, none of them in f64, by a number in one pass a device, and keeps their dtypes. Does not wait.
    ///
    /// The pass reads and writes what a multiplication of each does, in a few launches. It is taken where a norm that was measured
    /// asks for it: measuring first and unscaling by both factors would read all gradients twice where the norm asks for nothing.
    pub(crate) fn scale(
        &mut self,
        positions: &[usize],
        factor: f32,
    ) -> Result<(), UnsupportedDType> {
        self.forget_measures();
        let mut pass = Pass::default();
        for position in positions {
            let entry = &self.entries[*position];
            if let Some(grad) = entry.take(&mut self.params) {
                pass.push(*position, grad, true);
            }
        }
        pass.unscale(factor)?;
        for (position, grad) in pass.into_tensors() {
            self.entries[position].put(&mut self.params, grad);
        }
        Ok(())
    }

    /// What the unscaling pass has found. Changes made to the gradients since are not in it, until [`clip`](Self::clip)
    /// measures them.
    ///
    /// A disabled scaler has measured nothing: the first call here measures the gradients as they are then, in one pass, and waits for the device.
    /// Where that fails (the device cannot compute in their dtype), only their number is known, and the log says so.
    pub fn status(&self) -> &GradientStatus {
        if self.tested || self.is_measured || self.status.elements > 0 {
            return &self.status;
        }
        let asked = self.asked.get_or_init(|| {
            Box::new(self.measure().unwrap_or_else(|error| {
                warn!("gradients cannot be measured: {error}");
                (self.entries.clone(), GradientStatus::clone(&self.status))
            }))
        });
        &asked.1
    }

    /// Whether a gradient holds an infinity or a NaN: then the step will be skipped, but for a disabled scaler, which skips nothing. Measures as
    /// [`status`](Self::status) does.
    pub fn has_overflow(&self) -> bool {
        self.skips() || (!self.tested && self.status().has_overflow())
    }

    /// Burn's own container of the unscaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to replace gradients one by one: by others of the same shape, dtype and device.
    /// [`GradScaler::step`](crate::GradScaler::step) leaves out those of a parameter that had none. What is put in is tested
    /// only by [`clip`](Self::clip).
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        self.forget_measures();
        &mut self.params
    }

    /// Burn's own container, to step an optimizer of Burn's by hand. The status is lost, and with it the decision to skip.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// The gradients to step with: not those that came in by [`params_mut`](Self::params_mut) for other parameters, of which
    /// nothing was tested, and without autodiff, which gradients that a program has made itself may have.
    pub(crate) fn into_tested(mut self) -> GradientsParams {
        let mut tested = GradientsParams::new();
        for entry in &self.entries {
            if let Some(grad) = entry.take(&mut self.params) {
                entry.put(&mut tested, grad);
            }
        }
        tested
    }

    /// The gradient of a parameter, if it has one. A handle to the same memory; does not wait.
    ///
    /// # Panics
    ///
    /// If `D` is not the rank of the parameter, as [`GradientsParams::get`] does.
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        self.params.get(id)
    }

    /// The paths and ids of the parameters that have a gradient, in the module's order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, ParamId)> {
        self.entries
            .iter()
            .map(|entry| (entry.path.as_str(), entry.id))
    }

    /// Multiplies every gradient by a number, on its device; does not wait. Dtypes stay; f16 and bf16 gradients are
    /// multiplied in f32, so that the factor is not rounded. To clip by a norm, see [`clip`](Self::clip).
    ///
    /// A product that overflows is found only by [`clip`](Self::clip).
    pub fn mul_scalar(self, factor: f64) -> Self {
        self.map_each(|_, grad| grad.mul_scalar(factor))
    }

    /// Replaces gradients by what `change` makes of them and their positions.
    pub(crate) fn map_each(mut self, change: impl Fn(usize, AnyTensor) -> AnyTensor) -> Self {
        self.forget_measures();
        for (position, entry) in self.entries.iter().enumerate() {
            entry.change(&mut self.params, |grad| change(position, grad));
        }
        self
    }

    /// Replaces every gradient by what Burn's [`ModuleMapper`] makes of it, in the module's order.
    ///
    /// The mapper sees a gradient as a [`Param`] with its parameter's id and without autodiff. `enter_module` and `exit_module`
    /// are called with the names on the parameter's path (their second argument is empty). Shape, dtype and device must stay.
    /// Does not wait for the device, unless the mapper does.
    ///
    /// ```
    /// use burn::{module::{ModuleMapper, Param}, tensor::Tensor};
    ///
    /// /// Limits every value to 0.1.
    /// struct Limit;
    ///
    /// impl ModuleMapper for Limit {
    ///     fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
    ///         grad.map(|grad| grad.clamp(-0.1, 0.1))
    ///     }
    /// }
    /// # fn limit(grads: burn_amp::gradients::UnscaledGradients) -> burn_amp::gradients::UnscaledGradients {
    /// let grads = grads.map(&mut Limit);
    /// # grads
    /// # }
    /// ```
    ///
    /// What the mapper returns is tested only by [`clip`](Self::clip).
    pub fn map<F: ModuleMapper>(mut self, mapper: &mut F) -> Self {
        self.forget_measures();
        for entry in &self.entries {
            with_rank!(entry.rank(), D => {
                if let Some(grad) = self.params.remove::<D>(entry.id) {
                    let names = || entry.path.split('.');
                    names().for_each(|name| mapper.enter_module(name, ""));
                    let grad = mapper.map_float(Param::initialized(entry.id, grad.inner())).into_value();
                    names().for_each(|name| mapper.exit_module(name, ""));
                    self.params.register(entry.id, grad);
                }
            }, rank => unreachable!("a gradient of rank {rank}"));
        }
        self
    }

    /// Adds `weight` times other gradients to these. Does not wait for the device.
    ///
    /// Taken in f32 for f16 and bf16 gradients (f64 for f64 ones); a sum has the dtype that the gradient of `self` had. A
    /// gradient that only `other` has is taken over, times `weight`, in its dtype. Both must be of the same module.
    ///
    /// The sum overflows, and its step is skipped, if either of the two does. Until [`clip`](Self::clip) measures the sum, the
    /// status counts the values that are zero in both, and has the norm and the largest magnitude of `self`'s gradients and of
    /// those that only `other` has.
    ///
    /// # Panics
    ///
    /// If the two gradients of a parameter differ in shape or device.
    pub fn add_weighted(mut self, mut other: Self, weight: f64) -> Self {
        let own = self.entries.iter().enumerate();
        let positions: HashMap<ParamId, usize> = own.map(|(at, entry)| (entry.id, at)).collect();
        for entry in other.entries {
            if let Some(grad) = entry.take(&mut other.params) {
                let sum = match entry.take(&mut self.params) {
                    Some(sum) => sum.blend(grad, 1.0, weight),
                    None => grad.mul_scalar(weight),
                };
                entry.put(&mut self.params, sum);
            }
            match positions.get(&entry.id) {
                Some(at) => {
                    let own = &mut self.entries[*at].status;
                    *own = sum_of(*own, entry.status);
                }
                None => self.entries.push(entry),
            }
        }
        self.asked.take();
        match std::mem::take(&mut self.is_measured) && other.is_measured {
            true => {
                let clipped = std::mem::take(&mut *self.status);
                *self.status = GradientStatus {
                    clipped: clipped.clipped,
                    clip_norms: clipped.clip_norms,
                    clip_coefficient: clipped.clip_coefficient,
                    ..summarize(&self.entries)
                };
            }
            false => self.status.join(*other.status),
        }
        self.finding = self.finding.and(other.finding);
        self.tested |= other.tested;
        self.find_overflow();
        self.pending.extend(other.pending);
        self
    }
}

/// What is known of a sum before it is measured: what is zero in both is zero in it.
fn sum_of(status: TensorStatus, added: TensorStatus) -> TensorStatus {
    TensorStatus {
        zeros: (status.zeros + added.zeros).saturating_sub(status.elements),
        non_finite_before: status.non_finite_before.max(added.non_finite_before),
        non_finite: status.non_finite.max(added.non_finite),
        above: status.above.max(added.above),
        ..status
    }
}

/// Handles to the same memory: what is changed in one is not changed in the other.
impl Clone for UnscaledGradients {
    fn clone(&self) -> Self {
        let mut params = GradientsParams::new();
        for entry in &self.entries {
            if let Some(grad) = entry.get(&self.params) {
                entry.put(&mut params, grad);
            }
        }
        Self {
            params,
            entries: self.entries.clone(),
            status: self.status.clone(),
            asked: self.asked.clone(),
            is_measured: self.is_measured,
            tested: self.tested,
            finding: self.finding.clone(),
            pending: self.pending.clone(),
        }
    }
}

/// What [`ScaledOptimizer::step`](crate::ScaledOptimizer::step) takes: Burn's own gradients, which are unscaled, those of a
/// loss that was scaled by hand, or those that were tested before, to be looked at or clipped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepGradients {
    /// Burn's own gradients, unscaled. They are tested.
    Plain(GradientsParams),
    /// Gradients of a scaled loss.
    Scaled(ScaledGradients),
    /// Gradients after [`ScaledOptimizer::unscale`](crate::ScaledOptimizer::unscale).
    Unscaled(UnscaledGradients),
}

impl From<GradientsParams> for StepGradients {
    fn from(grads: GradientsParams) -> Self {
        Self::Plain(grads)
    }
}

/// The sum of two losses' gradients: [`add_weighted`](UnscaledGradients::add_weighted) with a weight of 1, and its panics.
impl Add for UnscaledGradients {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.add_weighted(other, 1.0)
    }
}

impl StepGradients {
    /// The gradients, by their parameters.
    pub fn params(&self) -> &GradientsParams {
        match self {
            Self::Plain(grads) => grads,
            Self::Scaled(grads) => grads.params(),
            Self::Unscaled(grads) => grads.params(),
        }
    }

    /// The gradients, by their parameters.
    pub fn into_params(self) -> GradientsParams {
        match self {
            Self::Plain(grads) => grads,
            Self::Scaled(grads) => grads.into_params(),
            Self::Unscaled(grads) => grads.into_params(),
        }
    }
}

impl From<ScaledGradients> for StepGradients {
    fn from(grads: ScaledGradients) -> Self {
        Self::Scaled(grads)
    }
}

impl From<UnscaledGradients> for StepGradients {
    fn from(grads: UnscaledGradients) -> Self {
        Self::Unscaled(grads)
    }
}

/// Sums the gradients that several devices computed, as
/// [`ModuleOptimizer::step_multi`](burn::optim::ModuleOptimizer::step_multi) does, but in f32 for f16 and bf16 gradients (f64
/// stays f64), so that the sum neither overflows nor rounds in half precision.
///
/// An infinity or a NaN on one device stays one in the sum: all devices step or skip together. Moves gradients between
/// devices; does not read them. Scaled gradients of one loss scale give scaled ones, for
/// [`GradScaler::scaled`](crate::GradScaler::scaled).
///
/// # Panics
///
/// In Burn, if a gradient does not have its parameter's rank, or gradients of one parameter have several shapes.
/// [`ScaledOptimizer::step_multi`](crate::ScaledOptimizer::step_multi) makes an error of that.
pub fn sum_of_devices<M: Module>(mut grads: MultiGradientsParams, module: &M) -> GradientsParams {
    let mut total = GradientsParams::new();
    for parameter in parameters(module) {
        let (id, rank) = (parameter.id, parameter.value.rank());
        for (grads, _) in &mut grads.grads {
            if let Some(grad) = take_gradient(grads, id, rank) {
                let wide = working_dtype(grad.dtype());
                put_gradient(grads, id, grad.cast(wide));
            }
        }
        with_rank!(rank, D => {
            if let Some((sum, _)) = grads.remove::<D>(id) {
                total.register(id, sum);
            }
        }, rank => unreachable!("a parameter of rank {rank}"));
    }
    total
}

/// Gradients in the dtype of their parameters' masters: f16 and bf16 become f32. What has another shape than its parameter stays as it is, for the
/// step to refuse. Does not wait for the device.
pub fn widened<M: Module>(mut grads: GradientsParams, module: &M) -> GradientsParams {
    for entry in Entries::of(&grads, module).unwrap_or_default().gradients {
        let wide = working_dtype(entry.parameter);
        entry.change(&mut grads, |grad| grad.cast(wide));
    }
    grads
}

/// Values of parameters in the place of gradients, where Burn's optimizer only asks which parameters have one.
pub fn placeholders(parameters: impl IntoIterator<Item = Parameter>) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for Parameter { id, value, .. } in parameters {
        put_gradient(&mut grads, id, value);
    }
    grads
}

/// Sums of gradients, each in the container of its device.
pub fn by_device<M: Module>(mut grads: GradientsParams, module: &M) -> MultiGradientsParams {
    let mut sorted = MultiGradientsParams::default();
    for entry in Entries::of(&grads, module).unwrap_or_default().gradients {
        if let Some(grad) = entry.take(&mut grads) {
            entry.put(of_device(&mut sorted, grad.device()), grad);
        }
    }
    sorted
}

fn of_device(sorted: &mut MultiGradientsParams, device: Device) -> &mut GradientsParams {
    let grads = &mut sorted.grads;
    let place = grads.iter().position(|(_, other)| *other == device);
    let place = place.unwrap_or_else(|| {
        grads.push((GradientsParams::new(), device));
        grads.len() - 1
    });
    &mut grads[place].0
}
