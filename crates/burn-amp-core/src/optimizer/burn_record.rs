//! Records of Burn's own optimizers, which lose nothing.

use burn::module::ParamGroup;
use burn::optim::{
    DynOptimizer, DynState, LearningRate, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink,
    StateSource,
};
use burn::tensor::{DType, Device, Shape, kind::BridgeTensor};
use burn_amp_kernels::panic_message;
use burn_pack::Scalar;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{collections::BTreeMap, sync::Arc, sync::Mutex};

use crate::update::module_optim::{ORIGIN, foreign};
use crate::{error::AmpError, lock::locked, record::Container, record::names_of};

/// The optimizer with a stored state.
///
/// Burn builds the tensors on `Device::default()`, the first GPU backend that was *compiled in*, and moves
/// them at the next step. Where that device does not exist it panics, which is an error here: the environment
/// variable `BURN_DEVICE` names another device.
pub(super) fn loaded(
    optim: ModuleOptimizer,
    record: OptimizerRecord,
) -> Result<ModuleOptimizer, AmpError> {
    let bytes = (record.into_bytes()).map_err(|error| foreign(error.to_string()))?;
    let stored = Container::from_bytes(bytes.clone(), ORIGIN)?;
    let record = OptimizerRecord::from_bytes(bytes).map_err(|e| foreign(e.to_string()))?;
    let loaded = catch_unwind(AssertUnwindSafe(|| optim.load_record(record)));
    let loaded = loaded.map_err(|panic| {
        let message = panic_message(&*panic);
        foreign(format!(
            "Burn could not load it ({message}). If that names a device, set `BURN_DEVICE` to one that exists"
        ))
    })?;
    // Burn drops state that the optimizer does not know and converts state to the device's default dtype, both
    // silently; a resumed run would go on with less than was saved.
    match Comparison::first_loss(stored, &loaded) {
        Some(lost) => Err(foreign(lost)),
        None => Ok(loaded),
    }
}

/// Finds out what an optimizer has loaded, without a transfer: Burn lets an optimizer look into a record, and nobody else. This one compares the names,
/// types and shapes there with those that were stored.
#[derive(Clone)]
struct Comparison {
    stored: Arc<Container>,
    found: Arc<Mutex<Found>>,
}

#[derive(Default)]
struct Found {
    tensors: BTreeMap<String, (DType, Shape)>,
    scalars: BTreeMap<String, Scalar>,
}

impl Comparison {
    /// The first tensor or scalar of a stored state that an optimizer, which has loaded it, does not have, and why.
    fn first_loss(stored: Container, loaded: &ModuleOptimizer) -> Option<String> {
        const OTHER: &str = "it was saved by another optimizer or with other settings";
        let comparison = Self {
            stored: Arc::new(stored),
            found: Arc::default(),
        };
        let group = ParamGroup::all();
        let reader = SgdConfig::new().init();
        let reader = reader.with_group(group, comparison.clone(), None);
        drop(reader.load_record(ModuleOptimizer::to_record(loaded)));
        let Found { tensors, scalars } = &*locked(&comparison.found);
        for (name, tensor) in &comparison.stored.tensors {
            match tensors.get(name) {
                None => return Some(format!("its tensor `{name}` is unknown here: {OTHER}")),
                Some((dtype, _)) if *dtype != tensor.dtype => {
                    let (stored, loaded) = (tensor.dtype.name(), dtype.name());
                    return Some(format!(
                        "its tensor `{name}` is {stored}, and Burn would load it as {loaded}, the default float dtype of `Device::default()`. \
                         For a model in f64, call `Device::default().configure(FloatDType::F64)` at the start of the program. `MasterWeights` \
                         keep the state of a model in half precision in f32"
                    ));
                }
                Some((_, shape)) if *shape != tensor.shape => {
                    return Some(format!("its tensor `{name}` would be changed: {OTHER}"));
                }
                Some(_) => {}
            }
        }
        let mut stored = comparison.stored.scalars.iter();
        let lost = stored.find(|(name, value)| scalars.get(*name) != Some(*value));
        lost.map(|(name, _)| format!("its value `{name}` is unknown here: {OTHER}"))
    }
}

/// Loads nothing.
impl DynOptimizer for Comparison {
    fn step_dyn(
        &self,
        _rank: usize,
        _lr: LearningRate,
        tensor: BridgeTensor,
        _grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, state)
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, _prefix: &str, _state: &DynState, _out: &mut StateSink) {}

    fn state_unflatten(
        &self,
        _rank: usize,
        prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        let found = &mut *locked(&self.found);
        let field = |name: &str| name[prefix.len() + 1..].to_string();
        for (name, _) in self.stored.tensors.range(names_of(prefix)) {
            let data = src.take_tensor(prefix, &field(name));
            let data = data.map(|data| (name.clone(), (data.dtype(), data.shape().clone())));
            found.tensors.extend(data);
        }
        for (name, _) in self.stored.scalars.range(names_of(prefix)) {
            let value = src.take_scalar(prefix, &field(name));
            found
                .scalars
                .extend(value.map(|value| (name.clone(), value)));
        }
        None
    }
}
