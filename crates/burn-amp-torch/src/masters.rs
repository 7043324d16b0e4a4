//! The f32 copies of half-precision parameters, in the states of optimizers.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_core::internal::{AnyTensor, ParamTensor, is_half, torch::show_master};

/// The names of masters, and of states beside them, in a record.
const MASTER: &str = "master";
const INNER: &str = "inner";

/// The state of a parameter in an optimizer, and the master if the parameter is in half precision.
///
/// In a record the master is called `master`, and the state stands in `inner` beside it. Without a master it stands where Burn's optimizers have
/// it.
#[derive(Clone, Default)]
pub struct WithMaster<S> {
    /// The f32 copy of a half-precision parameter.
    pub master: Option<ParamTensor>,
    /// The state of the optimizer.
    pub state: S,
}

impl<S> WithMaster<S> {
    /// Leaves the master where somebody asks for masters. Returns whether somebody does.
    pub fn shows_master(&self, prefix: &str) -> bool {
        show_master(prefix, self.master.as_ref())
    }

    /// Does what [`RecordState::state_flatten`] does; `flatten` does it for the state.
    pub fn flatten(
        &self,
        prefix: &str,
        out: &mut StateSink,
        flatten: impl FnOnce(&S, &str, &mut StateSink),
    ) {
        if self.shows_master(prefix) {
            return;
        }
        match &self.master {
            Some(master) => {
                out.push_tensor(prefix, MASTER, master.to_data());
                flatten(&self.state, &join_path(prefix, INNER), out);
            }
            None => flatten(&self.state, prefix, out),
        }
        // CubeCL reads when the values are looked at, and on the CPU where they lie: the next step, in place, would be in the record.
        for (_, data) in &mut out.tensors {
            let bytes = data.as_bytes().to_vec();
            *data = TensorData::from_bytes_vec(bytes, data.shape().clone(), data.dtype());
        }
    }

    /// Does what [`RecordState::state_unflatten`] does; `unflatten` does it for the state.
    pub fn unflatten(
        prefix: &str,
        src: &mut StateSource,
        unflatten: impl FnOnce(&str, &mut StateSource) -> Option<S>,
    ) -> Option<Self> {
        let master = src.take_tensor(prefix, MASTER);
        // No release has saved another one: the next step would panic.
        if (master.as_ref()).is_some_and(|data| data.dtype() != DType::F32) {
            return None;
        }
        let state = match &master {
            Some(_) => unflatten(&join_path(prefix, INNER), src)?,
            None => unflatten(prefix, src)?,
        };
        let master = master.map(ParamTensor::from);
        Some(Self { master, state })
    }
}

/// The optimizer of single parameters inside: steps masters in the place of half-precision parameters.
#[derive(Clone)]
pub struct Masters<O>(pub O);

impl<S: RecordState> RecordState for WithMaster<Option<S>> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.flatten(prefix, out, |state, prefix, out| {
            if let Some(state) = state {
                state.state_flatten(prefix, out);
            }
        });
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let state = |prefix: &str, src: &mut _| Some(S::state_unflatten(prefix, src, device));
        let kept = Self::unflatten(prefix, src, state)?;
        (kept.master.is_some() || kept.state.is_some()).then_some(kept)
    }
}

impl<O: Optimizer> Optimizer for Masters<O> {
    /// There may be a master without a state.
    type State<const D: usize> = WithMaster<Option<O::State<D>>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        kept: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (dtype, kept) = (tensor.dtype(), kept.unwrap_or_default());
        let tensor = wide(AnyTensor::with_graph(tensor), kept.master, &grad.device());
        let grad = AnyTensor::with_graph(grad).cast(tensor.dtype());
        let (tensor, grad) = (tensor.into_handle(), grad.into_handle());
        let (tensor, state) = self.0.step(lr, tensor, grad, kept.state);
        let tensor = AnyTensor::with_graph(tensor);
        let master = is_half(dtype).then(|| tensor.clone().into());
        let is_kept = master.is_some() || state.is_some();
        let kept = WithMaster { master, state };
        (tensor.cast(dtype).into_handle(), is_kept.then_some(kept))
    }

    /// The next step moves the master.
    fn to_device<const D: usize>(kept: Self::State<D>, device: &Device) -> Self::State<D> {
        WithMaster {
            state: kept.state.map(|state| O::to_device(state, device)),
            ..kept
        }
    }
}

/// The tensor that is stepped in the place of a parameter: its master, if it is in half precision.
fn wide(tensor: AnyTensor, master: Option<ParamTensor>, device: &Device) -> AnyTensor {
    let dtype = tensor.dtype();
    if !is_half(dtype) {
        return tensor;
    }
    let wide = tensor.clone().cast(FloatDType::F32);
    let master = master.filter(|master| master.rank() == tensor.rank());
    match master.and_then(|master| master.live(device)) {
        // As it is where the parameter is its rounded image, and the parameter where that was changed elsewhere.
        Some(master) => master.map(|master| {
            let changed = master.clone().cast(dtype).not_equal(tensor.into_handle());
            master.mask_where(changed, wide.into_handle())
        }),
        None => wide,
    }
}

#[cfg(test)]
mod tests {
    use burn::optim::SgdConfig;

    use super::*;

    /// Our loader refuses the record, Burn's does not.
    #[test]
    fn a_master_of_another_rank_counts_for_nothing() {
        let device = Device::flex();
        let mut source = StateSource::default();
        source.insert_tensor("master".into(), TensorData::from([[2.0f32]]));
        let kept = WithMaster::state_unflatten("", &mut source, &device);
        let one = |dtype| Tensor::<1>::ones([1], (&device, dtype));
        let masters = Masters(SgdConfig::new().build());
        let (stepped, _) = masters.step(0.5, one(DType::F16), one(DType::F32), Some(kept.unwrap()));
        assert_eq!(stepped.into_scalar::<f32>(), 0.5);
    }
}
