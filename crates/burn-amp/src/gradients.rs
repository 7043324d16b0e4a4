//! Typed gradients: [`ScaledGradients`] carry the loss scale, [`UnscaledGradients`] do not.

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    optim::{GradientsParams, MultiGradientsParams},
    tensor::Tensor,
};
use burn_amp_kernels::{TensorStatus, UnsupportedDType};
use std::{collections::HashMap, sync::Arc};

use crate::{
    any_tensor::{AnyTensor, put_gradient, take_gradient},
    dtype::working_dtype,
    entries::{Entries, Entry, measure, scale, summarize},
    finding::Finding,
    gradient_status::GradientStatus,
    loss_scale::{Measures, SkipCause},
    module_path::{Parameter, parameters},
    rank::with_rank,
};

/// Gradients of a scaled loss: multiplied by the loss scale, possibly infinite.
///
/// Made by [`GradScaler::backward`](crate::GradScaler::backward) and [`GradScaler::scaled`](crate::GradScaler::scaled) alone:
/// a plain [`GradientsParams`] is unscaled. [`GradScaler::unscale`](crate::GradScaler::unscale) turns them into
/// [`UnscaledGradients`].
#[derive(Debug)]
pub struct ScaledGradients {
    params: GradientsParams,
    scale: f32,
}

impl ScaledGradients {
    pub(crate) fn new(params: GradientsParams, scale: f32) -> Self {
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
    entries: Vec<Entry>,
    status: Box<GradientStatus>,
    /// What was found in each gradient; none where they were not measured, or changed since.
    measures: Option<Vec<TensorStatus>>,
    /// Whether the loss scale has learned from these gradients already.
    settled: bool,
    /// Whether an overflow skips the step: not with a disabled scaler, whatever was measured.
    tested: bool,
    /// The cause of an overflow.
    cause: SkipCause,
    /// What the loss scale learns from, the gradients as they were when they were tested, where the status says another thing.
    seen: Option<Box<Measures>>,
    /// While one of these lives, its scaler waits for what becomes of the gradients.
    pub(crate) verdicts: Vec<Arc<Finding>>,
}

impl UnscaledGradients {
    pub(crate) fn new(
        params: GradientsParams,
        entries: Vec<Entry>,
        status: GradientStatus,
        measures: Option<Vec<TensorStatus>>,
    ) -> Self {
        Self {
            params,
            entries,
            seen: None,
            status: Box::new(status),
            measures,
            settled: false,
            tested: true,
            cause: SkipCause::Scale,
            verdicts: Vec::new(),
        }
    }

    /// Gradients of which each was measured.
    pub(crate) fn measured_as(
        params: GradientsParams,
        entries: Vec<Entry>,
        measures: Vec<TensorStatus>,
    ) -> Self {
        let status = summarize(&entries, &measures);
        Self::new(params, entries, status, Some(measures))
    }

    /// Gradients of a disabled scaler.
    pub(crate) fn untested(mut self) -> Self {
        self.tested = false;
        self
    }

    /// Gradients from which the loss scale has learned already, micro-batch by micro-batch.
    pub(crate) fn settled(mut self) -> Self {
        self.settled = true;
        self
    }

    pub(crate) fn with_cause(mut self, cause: SkipCause) -> Self {
        self.cause = cause;
        self
    }

    pub(crate) fn cause(&self) -> SkipCause {
        self.cause
    }

    /// The parameters whose gradients overflow.
    pub(crate) fn overflows(&self) -> impl Iterator<Item = &str> {
        self.overflow_counts().map(|(path, _)| path)
    }

    /// The same, and how many of their values are not finite.
    pub(crate) fn overflow_counts(&self) -> impl Iterator<Item = (&str, u64)> {
        let measures = self.measures.iter().flatten();
        let overflows =
            (self.entries.iter().zip(measures)).filter(|(_, status)| status.non_finite > 0);
        overflows.map(|(entry, status)| (entry.path.as_str(), status.non_finite))
    }

    /// What they tell of the loss scale.
    pub(crate) fn verdict(&self) -> Finding {
        let overflow = || self.status.overflow_parameter().unwrap_or("?").to_string();
        Finding {
            is_empty: self.entries.is_empty(),
            overflow: self.has_overflow().then(overflow),
            cause: self.cause,
            is_settled: self.settled,
            measures: self.seen(),
            rejected: None,
        }
    }

    fn seen(&self) -> Measures {
        let seen = self.seen.as_deref().copied();
        seen.unwrap_or_else(|| self.status.measures())
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// What is in each gradient, in the order of the entries. If that is not known, waits for the device, and makes the
    /// status that of the gradients as they are.
    pub(crate) fn measured(&mut self) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        if let Some(measures) = &self.measures {
            return Ok(measures.clone());
        }
        let measures = measure(&self.params, &self.entries)?;
        let seen = self.seen();
        self.seen = Some(Box::new(seen));
        *self.status = GradientStatus {
            above: seen.above,
            ..summarize(&self.entries, &measures)
        };
        self.measures = Some(measures.clone());
        Ok(measures)
    }

    /// Multiplies some of the gradients by a number, in one pass.
    pub(crate) fn scale(
        &mut self,
        positions: &[usize],
        factor: f64,
    ) -> Result<(), UnsupportedDType> {
        self.measures = None;
        let entries = positions.iter().map(|position| &self.entries[*position]);
        let entries: Vec<&Entry> = entries.collect();
        scale(&mut self.params, &entries, factor)
    }

    /// The status, for what clipping has done.
    pub(crate) fn status_mut(&mut self) -> &mut GradientStatus {
        &mut self.status
    }

    /// What the unscaling pass has found. Changes made to the gradients since are not in it, until [`clip`](Self::clip)
    /// measures them; of a disabled scaler there is only their number before.
    pub fn status(&self) -> &GradientStatus {
        &self.status
    }

    /// Whether a gradient holds an infinity or a NaN, so that the step will be skipped. Never with a disabled scaler,
    /// which skips nothing.
    pub fn has_overflow(&self) -> bool {
        self.tested && self.status.has_overflow()
    }

    /// Burn's own container of the unscaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to replace gradients one by one: by others of the same shape, dtype and device.
    /// [`GradScaler::step`](crate::GradScaler::step) leaves out those of a parameter that had none. What is put in is tested
    /// only by [`clip`](Self::clip).
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        self.measures = None;
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
        self.measures = None;
        for (position, entry) in self.entries.iter().enumerate() {
            if let Some(grad) = entry.take(&mut self.params) {
                entry.put(&mut self.params, change(position, grad));
            }
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
    /// # fn limit(grads: burn_amp::UnscaledGradients) -> burn_amp::UnscaledGradients {
    /// let grads = grads.map(&mut Limit);
    /// # grads
    /// # }
    /// ```
    ///
    /// What the mapper returns is tested only by [`clip`](Self::clip).
    pub fn map<F: ModuleMapper>(mut self, mapper: &mut F) -> Self {
        self.measures = None;
        for entry in &self.entries {
            with_rank!(entry.rank, D => {
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

    /// Adds `weight` times other gradients to these: of another loss, of a penalty. Does not wait for the device.
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
    pub fn add(mut self, mut other: Self, weight: f64) -> Self {
        for entry in &other.entries {
            let Some(grad) = entry.take(&mut other.params) else {
                continue;
            };
            let sum = match entry.take(&mut self.params) {
                Some(sum) => sum.blend(grad, 1.0, weight),
                None => grad.mul_scalar(weight),
            };
            entry.put(&mut self.params, sum);
        }
        let seen = self.seen().and(other.seen());
        if !self.has_overflow() {
            self.cause = other.cause;
        }
        self.join(other.entries, other.measures, *other.status);
        // What the loss scale has not learned from the one, it has not learned from the sum.
        self.settled &= other.settled;
        self.seen = Some(Box::new(seen));
        self.tested |= other.tested;
        self.verdicts.extend(other.verdicts);
        self
    }

    /// Takes over the entries of gradients that were added, and what is known of the sums.
    fn join(
        &mut self,
        entries: Vec<Entry>,
        added: Option<Vec<TensorStatus>>,
        status: GradientStatus,
    ) {
        let (mut measures, added) = self.measures.take().zip(added).unzip();
        let mut added = added.map(Vec::into_iter);
        let own = self.entries.iter().enumerate();
        let positions: HashMap<ParamId, usize> = own.map(|(at, entry)| (entry.id, at)).collect();
        for entry in entries {
            let added = added.as_mut().and_then(Iterator::next).unwrap_or_default();
            let known = positions.get(&entry.id).copied();
            if let Some(measures) = &mut measures {
                match known {
                    Some(position) => measures[position] = sum_of(measures[position], added),
                    None => measures.push(added),
                }
            }
            if known.is_none() {
                self.entries.push(entry);
            }
        }
        match measures {
            Some(measures) => {
                let clipped = std::mem::take(&mut *self.status);
                *self.status = GradientStatus {
                    clipped: clipped.clipped,
                    clip_norms: clipped.clip_norms,
                    clip_coefficient: clipped.clip_coefficient,
                    ..summarize(&self.entries, &measures)
                };
            }
            None => self.status.join(status),
        }
    }

    /// Rounds gradients that are wider than their parameter to its dtype.
    pub(crate) fn narrowed(mut self) -> Self {
        for entry in &mut self.entries {
            if entry.gradient == entry.parameter {
                continue;
            }
            if let Some(grad) = entry.take(&mut self.params) {
                entry.put(&mut self.params, grad.cast(entry.parameter));
                entry.gradient = entry.parameter;
            }
        }
        self
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
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
            measures: self.measures.clone(),
            settled: self.settled,
            tested: self.tested,
            cause: self.cause,
            seen: self.seen.clone(),
            verdicts: self.verdicts.clone(),
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

impl StepGradients {
    pub(crate) fn params(&self) -> &GradientsParams {
        match self {
            Self::Plain(grads) => grads,
            Self::Scaled(grads) => grads.params(),
            Self::Unscaled(grads) => grads.params(),
        }
    }

    pub(crate) fn into_params(self) -> GradientsParams {
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
pub(crate) fn widened<M: Module>(mut grads: GradientsParams, module: &M) -> GradientsParams {
    for entry in Entries::of(&grads, module).map_or_else(|_| Vec::new(), Entries::into_gradients) {
        if let Some(grad) = entry.take(&mut grads) {
            entry.put(&mut grads, grad.cast(working_dtype(entry.parameter)));
        }
    }
    grads
}

/// Values of parameters in the place of gradients, where Burn's optimizer only asks which parameters have one.
pub(crate) fn placeholders(parameters: impl IntoIterator<Item = Parameter>) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for Parameter { id, value, .. } in parameters {
        put_gradient(&mut grads, id, value);
    }
    grads
}
