//! Typed gradients: [`ScaledGradients`] carry the loss scale, [`UnscaledGradients`] do not.

use burn::module::{ModuleMapper, Param, ParamId};
use burn::{optim::GradientsParams, tensor::DType, tensor::Tensor};
use burn_amp_kernels::TensorStatus;
use std::sync::{Arc, OnceLock};
use std::{collections::HashMap, mem::take, ops::Add};

use crate::error::AmpError;
use crate::gradients::{Entry, GradientStatus, Pass, handles, pass::summarize};
use crate::scale::finding::{Dropped, Finding, PendingFinding, Tested};
use crate::values::{AnyTensor, with_rank};

/// Gradients of a scaled loss: multiplied by the loss scale, possibly infinite.
///
/// Made by [`Scaler::backward`](crate::Scaler::backward) and [`Scaler::scaled`](crate::Scaler::scaled) alone:
/// a plain [`GradientsParams`] is unscaled. `GradScaler::unscale` turns them into
/// [`UnscaledGradients`].
#[derive(Debug)]
pub struct ScaledGradients {
    pub(crate) params: GradientsParams,
    pub(crate) scale: f32,
}

impl ScaledGradients {
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

/// The gradients that [`ScaledOptimizer::step`](crate::ScaledOptimizer::step) takes: Burn's own, which are unscaled, those of a
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

/// Gradients after unscaling, with the findings of the same pass.
///
/// f32 for f16, bf16 and f32 parameters, f64 for f64 ones, unless
/// [`parameter_dtype_gradients`](crate::GradScalerConfig::parameter_dtype_gradients) is set. A disabled scaler does not change
/// them. They may be read and changed (clipped, say) before
/// `GradScaler::step`; whether the step is skipped was decided when they were
/// unscaled, or when [`clip`](Self::clip) measured them again after a change. There is no way back to
/// [`ScaledGradients`], so unscaling twice does not compile.
#[derive(Debug)]
pub struct UnscaledGradients {
    params: GradientsParams,
    pub(crate) entries: Vec<Entry>,
    /// The measures. A disabled scaler has none, until somebody asks.
    pub(super) found: OnceLock<Box<Found>>,
    /// True if gradients may be others than those that were measured.
    is_changed: bool,
    /// True if an overflow skips the step: false with a disabled scaler, whatever was measured.
    is_tested: bool,
    /// The evidence for the loss scale: of the gradients as they were when they were tested.
    pub(crate) finding: Finding,
    /// While one of these lives, its scaler waits for what becomes of the gradients.
    pub(crate) pending: Vec<Arc<PendingFinding>>,
}

/// The measures of one pass: of each gradient, in the order of the entries, and of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) each: Vec<TensorStatus>,
    pub(super) all: GradientStatus,
}

impl UnscaledGradients {
    /// Gradients with the measures of each; a disabled scaler has none.
    pub(crate) fn new(
        params: GradientsParams,
        entries: Vec<Entry>,
        measured: Option<Vec<TensorStatus>>,
    ) -> Self {
        let is_tested = measured.is_some();
        let each = measured.unwrap_or_default();
        let all = summarize(&entries, &each);
        let finding = Finding {
            tested: Tested::of(&all),
            is_resolved: false,
            measures: all.measures,
        };
        let found = is_tested.then(|| Box::new(Found { each, all }));
        Self {
            params,
            entries,
            found: found.map_or_else(OnceLock::new, OnceLock::from),
            is_changed: false,
            is_tested,
            finding,
            pending: Vec::new(),
        }
    }

    /// Marks their findings as counted by the scaler that has `dropped`.
    pub(crate) fn count(&self, dropped: &Dropped) {
        self.pending
            .iter()
            .for_each(|finding| finding.count(dropped));
    }

    /// The parameters whose gradients overflow.
    pub(crate) fn overflows(&self) -> impl Iterator<Item = &str> {
        self.overflow_counts().map(|(path, _)| path)
    }

    /// The parameters whose gradients overflow, and how many of their values are not finite.
    pub(crate) fn overflow_counts(&self) -> impl Iterator<Item = (&str, u64)> {
        let measured = self.measured_each().filter(|_| !self.is_changed);
        let counts = measured.map(|(entry, one)| (entry.path.as_str(), one.non_finite));
        counts.filter(|(_, count)| *count > 0)
    }

    fn measured_each(&self) -> impl Iterator<Item = (&Entry, &TensorStatus)> {
        let found = self.found.get().into_iter();
        found.flat_map(|found| self.entries.iter().zip(&found.each))
    }

    /// Returns true if a value of those that overflow is NaN. Waits for the device.
    pub(crate) fn has_nan(&self) -> bool {
        let bad = self.measured_each().filter(|(_, one)| one.non_finite > 0);
        let mut values = bad.filter_map(|(entry, _)| entry.get(&self.params)?.flat());
        values.any(|values| values.is_nan().any().into_scalar::<bool>())
    }

    /// Measures gradients of which it is not known what is in them, and makes the status that of the gradients as they are. Waits for the device
    /// then. An error if a program has put in one of another shape, too.
    pub(crate) fn measured(&mut self) -> Result<(), AmpError> {
        if self.is_changed || self.found.get().is_none() {
            let (entries, mut found) = self.measure()?;
            found.all.measures.above = self.finding.measures.above;
            if self.is_tested {
                self.finding.tested = Tested::of(&found.all);
            }
            (self.entries, self.found) = (entries, OnceLock::from(found));
            self.is_changed = false;
        }
        Ok(())
    }

    fn measure(&self) -> Result<(Vec<Entry>, Box<Found>), AmpError> {
        let mut entries = self.entries.clone();
        for entry in &mut entries {
            with_rank!(entry.shape.num_dims(), D => entry.check::<D>(&self.params))?;
        }
        let (each, _) = handles(&self.params, &entries, None).inspect(Vec::new())?;
        let all = summarize(&entries, &each);
        Ok((entries, Box::new(Found { each, all })))
    }

    /// Makes the measures those of other gradients than these.
    fn forget_measures(&mut self) {
        self.is_changed = true;
        if !self.is_tested {
            self.found.take();
        }
    }

    /// Multiplies some of the gradients by a number in one pass a device, and keeps their dtypes. Does not wait.
    ///
    /// The pass reads and writes what a multiplication of each does, in a few launches. It is taken where a norm that was measured
    /// asks for it: measuring first and unscaling by both factors would read all gradients twice where the norm asks for nothing.
    pub(super) fn scale(&mut self, positions: &[usize], factor: f32) -> Result<(), AmpError> {
        self.forget_measures();
        let mut pass = Pass::new(None, self.entries.len());
        for at in positions {
            if let Some(grad) = self.entries[*at].take(&mut self.params) {
                pass.push::<1>(*at, grad.into_handle(), true);
            }
        }
        pass.unscale(factor)?;
        for (position, grad) in pass.into_tensors() {
            self.entries[position].put(&mut self.params, grad);
        }
        Ok(())
    }

    /// The findings of the unscaling pass. Changes made to the gradients since are not in them, until [`clip`](Self::clip)
    /// measures them.
    ///
    /// A disabled scaler has measured nothing: the first call here measures the gradients as they are then, in one pass, and waits for the device.
    /// Where that fails (the device cannot compute in their dtype), only their number is known, and the log says so.
    pub fn status(&self) -> &GradientStatus {
        let found = self.found.get_or_init(|| {
            let measured = self.measure().map(|(_, found)| found);
            measured.unwrap_or_else(|error| {
                warn!("gradients cannot be measured: {error}");
                let mut unknown = Box::<Found>::default();
                unknown.all.gradients = self.entries.len();
                unknown
            })
        });
        &found.all
    }

    /// The status, if anything was measured. Of a disabled scaler's gradients that is where somebody has asked, as clipping does.
    pub(crate) fn known_status(&self) -> Option<Arc<GradientStatus>> {
        self.found.get().map(|found| Arc::new(found.all.clone()))
    }

    /// Returns true if a gradient holds an infinity or a NaN: then the step will be skipped, but for a disabled scaler, which skips nothing. Measures as
    /// [`status`](Self::status) does.
    pub fn has_overflow(&self) -> bool {
        self.finding.skips() || (!self.is_tested && self.status().has_overflow())
    }

    /// Burn's own container of the unscaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to replace gradients one by one: by others of the same shape, dtype and device.
    /// `GradScaler::step` leaves out those of a parameter that had none. What is put in is tested
    /// only by [`clip`](Self::clip).
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        self.forget_measures();
        &mut self.params
    }

    /// Burn's own container, to step an optimizer of Burn's by hand. The status is lost, and with it the decision to skip.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// The gradients to step with: without those that came in for other parameters, of which
    /// nothing was tested, and without autodiff, which gradients that a program has made itself may have.
    pub(crate) fn into_tested(mut self) -> GradientsParams {
        let has_others = self.is_changed || self.params.len() != self.entries.len();
        if !has_others && self.entries.iter().all(|entry| entry.is_plain) {
            return self.params;
        }
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
        let entries = self.entries.iter();
        entries.map(|entry| (entry.path.as_str(), entry.id))
    }

    /// The dtype of a gradient as it is now, if a program has replaced it too.
    pub(crate) fn dtype_of(&self, entry: &Entry) -> DType {
        let changed = self.is_changed.then(|| entry.get(&self.params)).flatten();
        changed.map_or(entry.gradient, |gradient| gradient.dtype())
    }

    /// Multiplies every gradient by a number, on its device; does not wait. Dtypes stay; f16 and bf16 gradients are
    /// multiplied in f32, so that the factor is not rounded. To clip by a norm, see [`clip`](Self::clip).
    ///
    /// A product that overflows is found only by [`clip`](Self::clip).
    pub fn mul_scalar(mut self, factor: f64) -> Self {
        (0..self.entries.len()).for_each(|at| self.change(at, |grad| grad.mul_scalar(factor)));
        self
    }

    /// Replaces the gradient at a position.
    pub(super) fn change(&mut self, at: usize, change: impl FnOnce(AnyTensor) -> AnyTensor) {
        self.forget_measures();
        self.entries[at].change(&mut self.params, change);
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
            with_rank!(entry.shape.num_dims(), D => {
                if let Some(grad) = self.params.remove::<D>(entry.id) {
                    let names = || entry.path.split('.');
                    names().for_each(|name| mapper.enter_module(name, ""));
                    let grad = mapper.map_float(Param::initialized(entry.id, grad.inner())).into_value();
                    names().for_each(|name| mapper.exit_module(name, ""));
                    self.params.register(entry.id, grad);
                }
            });
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
        let is_known = |grads: &Self| grads.is_tested && !grads.is_changed;
        let is_known = is_known(&self) && is_known(&other);
        let found = |grads: &mut Self| {
            let mut found = grads.found.take().unwrap_or_default();
            found
                .each
                .resize_with(grads.entries.len(), Default::default);
            found
        };
        let (mut found, added) = (found(&mut self), found(&mut other));
        for (entry, added) in other.entries.into_iter().zip(added.each) {
            if let Some(grad) = entry.take(&mut other.params) {
                let sum = match entry.take(&mut self.params) {
                    Some(sum) => sum.blend(grad, 1.0, weight),
                    None => grad.mul_scalar(weight),
                };
                entry.put(&mut self.params, sum);
            }
            match positions.get(&entry.id) {
                Some(at) => found.each[*at] = sum_of(found.each[*at], added),
                None => {
                    self.entries.push(entry);
                    found.each.push(added);
                }
            }
        }
        match is_known {
            true => {
                let clipping = take(&mut found.all.clipping);
                found.all = summarize(&self.entries, &found.each);
                found.all.clipping = clipping;
            }
            false => {
                found.all.non_finite += added.all.non_finite;
                found.all.overflow = found.all.overflow.take().or(added.all.overflow);
            }
        }
        if self.is_tested {
            self.found = OnceLock::from(found);
        }
        self.is_changed = true;
        self.is_tested |= other.is_tested;
        self.finding = self.finding.and(other.finding);
        self.pending.extend(other.pending);
        self
    }
}

/// The measures of a sum that was not measured: what is zero in both is zero in it.
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
            found: self.found.clone(),
            is_changed: self.is_changed,
            is_tested: self.is_tested,
            finding: self.finding.clone(),
            pending: self.pending.clone(),
        }
    }
}

/// The sum of two losses' gradients: [`add_weighted`](UnscaledGradients::add_weighted) with a weight of 1, and its panics.
impl Add for UnscaledGradients {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.add_weighted(other, 1.0)
    }
}
