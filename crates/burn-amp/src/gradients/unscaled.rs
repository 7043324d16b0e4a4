use burn::{
    module::ParamId,
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use burn_amp_kernels::{TensorStatus, UnsupportedDType};
use std::collections::HashSet;

use super::{
    ClipStatus, GradientStatus,
    in_full::in_full,
    unscale::{measure, summarize},
};
use crate::{live_scale::Blame, rank::with_rank};

/// Gradients after unscaling, with what the same pass has found in them.
///
/// f32 for f16, bf16 and f32 parameters, f64 for f64 ones, unless
/// [`parameter_dtype_gradients`](crate::GradScalerConfig::parameter_dtype_gradients) is set; of a disabled scaler, as they
/// came. They may be read and changed (clipped, say) before
/// [`GradScaler::step`](crate::GradScaler::step); whether the step is skipped was decided when they were
/// unscaled, or when [`clip`](Self::clip) measured them again after a change. There is no way back to
/// [`ScaledGradients`](super::ScaledGradients), so unscaling twice does not compile:
///
/// ```compile_fail,E0277
/// # fn twice<M: burn::module::Module>(scaler: &burn_amp::GradScaler, once: burn_amp::UnscaledGradients, model: &M) {
/// let twice = scaler.unscale(once, model);
/// # }
/// ```
#[derive(Debug)]
pub struct UnscaledGradients {
    params: GradientsParams,
    entries: Vec<Entry>,
    status: GradientStatus,
    /// What was found in each gradient; none where they were not measured, or changed since.
    measures: Option<Vec<TensorStatus>>,
    /// Whether the loss scale has learned from these gradients already.
    settled: bool,
    /// Whether an overflow skips the step: not with a disabled scaler, whatever was measured.
    tested: bool,
    /// What an overflow is to be blamed on.
    blame: Blame,
}

/// What is known of one gradient beside its values.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    pub(crate) path: String,
    pub(crate) rank: usize,
    pub(crate) parameter: DType,
    pub(crate) gradient: DType,
}

/// A change to every gradient, whatever its rank. See [`UnscaledGradients::map`].
pub trait GradientMapper {
    /// Returns the gradient to use in place of `grad`; shape, dtype and device must stay.
    ///
    /// `path` is that of the parameter in its module, as optimizer groups see it: `"layer.weight"`.
    fn map<const D: usize>(&mut self, path: &str, id: ParamId, grad: Tensor<D>) -> Tensor<D>;
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
            status,
            measures,
            settled: false,
            tested: true,
            blame: Blame::Scale,
        }
    }

    /// Gradients of a disabled scaler.
    pub(super) fn untested(mut self) -> Self {
        self.tested = false;
        self
    }

    /// Gradients from which the loss scale has learned already, micro-batch by micro-batch.
    pub(crate) fn settled(mut self) -> Self {
        self.settled = true;
        self
    }

    pub(crate) fn blamed(mut self, blame: Blame) -> Self {
        self.blame = blame;
        self
    }

    pub(crate) fn blame(&self) -> Blame {
        self.blame
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// What is in each gradient, in the order of the entries. If that is not known, waits for the device, and makes the
    /// status that of the gradients as they are.
    pub(super) fn measured(&mut self) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        if let Some(measures) = &self.measures {
            return Ok(measures.clone());
        }
        let measures = measure(&self.params, &self.entries)?;
        self.status = summarize(&self.entries, &measures);
        self.measures = Some(measures.clone());
        Ok(measures)
    }

    pub(super) fn set_clip(&mut self, clip: ClipStatus) {
        self.status.clip = Some(clip);
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
    /// by [`clip`](Self::clip) alone.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        self.measures = None;
        &mut self.params
    }

    /// Burn's own container, to step an optimizer of Burn's by hand. The status is lost, and with it the decision to skip.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// The gradients to step with: not those that came in by [`params_mut`](Self::params_mut) for other parameters, of which
    /// nothing was tested.
    pub(crate) fn into_tested(mut self) -> GradientsParams {
        let mut tested = GradientsParams::new();
        for entry in &self.entries {
            with_rank!(entry.rank, D => {
                if let Some(grad) = self.params.remove::<D>(entry.id) {
                    tested.register(entry.id, grad);
                }
            }, _rank => ());
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
    /// A product that overflows is found by [`clip`](Self::clip) alone.
    pub fn mul_scalar(self, factor: f64) -> Self {
        self.map(&mut MulScalar(factor))
    }

    /// Replaces every gradient by what `mapper` makes of it, in the module's order. Does not wait for the device, unless
    /// `mapper` does.
    ///
    /// What `mapper` makes is tested by [`clip`](Self::clip) alone.
    pub fn map<F: GradientMapper>(mut self, mapper: &mut F) -> Self {
        self.measures = None;
        for entry in &self.entries {
            with_rank!(
                entry.rank,
                D => map_entry::<D, F>(&mut self.params, entry, mapper),
                rank => log::warn!("gradient of `{}` has rank {rank}: left as it is", entry.path)
            );
        }
        self
    }

    /// Adds `weight` times other gradients to these: of another loss, of a penalty. Does not wait for the device.
    ///
    /// Taken in f32 for f16 and bf16 gradients (f64 for f64 ones); a sum has the dtype that the gradient of `self` had. A
    /// gradient that only `other` has is taken over, times `weight`, in its dtype. Both must be of the same module.
    ///
    /// The sum overflows, and its step is skipped, if either of the two does. The rest of the status is that of `self`, until
    /// [`clip`](Self::clip) measures the sum.
    ///
    /// # Panics
    ///
    /// If the two gradients of a parameter differ in shape or device.
    pub fn add(mut self, mut other: Self, weight: f64) -> Self {
        self.measures = None;
        for entry in &other.entries {
            with_rank!(entry.rank, D => {
                if let Some(grad) = other.params.remove::<D>(entry.id) {
                    let sum = match self.params.remove::<D>(entry.id) {
                        Some(sum) => in_full(sum, |sum| {
                            burn_amp_kernels::blend(sum, grad, 1.0, weight)
                        }),
                        None => in_full(grad, |grad| grad.mul_scalar(weight)),
                    };
                    self.params.register(entry.id, sum);
                }
            }, rank => log::warn!("gradient of `{}` has rank {rank}: left out", entry.path));
        }
        let known: HashSet<ParamId> = self.entries.iter().map(|entry| entry.id).collect();
        let added = other.entries.into_iter();
        self.entries
            .extend(added.filter(|entry| !known.contains(&entry.id)));
        if !self.has_overflow() {
            self.blame = other.blame;
        }
        self.status.join(other.status);
        self.tested |= other.tested;
        self
    }

    /// Rounds gradients that are wider than their parameter to its dtype.
    pub(crate) fn narrowed(mut self) -> Self {
        for entry in &mut self.entries {
            if entry.gradient == entry.parameter {
                continue;
            }
            with_rank!(entry.rank, D => {
                if let Some(grad) = self.params.remove::<D>(entry.id) {
                    self.params.register(entry.id, grad.cast(entry.parameter));
                    entry.gradient = entry.parameter;
                }
            }, _rank => ());
        }
        self
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn map_entry<const D: usize, F: GradientMapper>(
    params: &mut GradientsParams,
    entry: &Entry,
    mapper: &mut F,
) {
    if let Some(grad) = params.remove::<D>(entry.id) {
        let grad = mapper.map(&entry.path, entry.id, grad);
        params.register(entry.id, grad);
    }
}

struct MulScalar(f64);

impl GradientMapper for MulScalar {
    fn map<const D: usize>(&mut self, _path: &str, _id: ParamId, grad: Tensor<D>) -> Tensor<D> {
        in_full(grad, |grad| grad.mul_scalar(self.0))
    }
}

/// Handles to the same memory: what is changed in one is not changed in the other.
impl Clone for UnscaledGradients {
    fn clone(&self) -> Self {
        let mut params = GradientsParams::new();
        for entry in &self.entries {
            with_rank!(entry.rank, D => {
                if let Some(grad) = self.params.get::<D>(entry.id) {
                    params.register(entry.id, grad);
                }
            }, _rank => ());
        }
        Self {
            params,
            entries: self.entries.clone(),
            status: self.status.clone(),
            measures: self.measures.clone(),
            settled: self.settled,
            tested: self.tested,
            blame: self.blame,
        }
    }
}
