//! Where a `Learner`'s checkpoints keep the scaler's state: in the optimizer's record, as the state of a parameter that no
//! model has. Burn's Learner stores nothing else, and asks nobody.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Param, ParamGroup, ParamId},
    optim::{
        DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink,
        StateSource,
    },
    tensor::{Bytes, DType, Device, Tensor, TensorData, kind::BridgeTensor},
};
use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{fused::FusedSteps, pipelined::Pipeline};
use crate::{
    error::AmpError,
    mixed_precision::MixedPrecision,
    record::{AmpRecord, Container},
};

/// The parameter that no model has.
const ID: u64 = u64::from_le_bytes(*b"burn_amp");
/// The name of its only tensor: the bytes of a burnpack, with a version and a checksum, each inverted, so that nothing in them is
/// taken for a section of the file around them.
const TENSOR: &str = "scaler";

/// What the optimizer keeps for the parameter.
#[derive(Clone)]
struct Entry {
    /// None while a step is made.
    state: Option<Stored>,
    /// Whether a checkpoint has brought it.
    loaded: bool,
}

/// What the next checkpoint is to hold.
#[derive(Clone)]
pub(super) enum Stored {
    Record(Box<AmpRecord>),
    /// What is there when it is taken.
    Pipeline(Pipeline),
    /// As above.
    Fused(FusedSteps),
}

/// What was found in an optimizer.
pub(super) enum Found {
    /// The state of the last step.
    Own,
    /// What a checkpoint has brought.
    Loaded(Box<AmpRecord>),
    /// A checkpoint of a run without scaler was loaded.
    Plain,
    /// The optimizer has not met a scaler before.
    Nothing,
}

type Mail = (Option<Stored>, Option<(Found, bool)>);

thread_local! {
    /// What the next step of the parameter puts into the entry, and what it has found there. Burn's `step` takes and
    /// returns nothing of ours.
    static MAIL: RefCell<Mail> = const { RefCell::new((None, None)) };
}

/// An optimizer that will carry a state.
pub(super) fn attach(
    optim: ModuleOptimizer,
    amp: &MixedPrecision,
    state: AmpRecord,
) -> ModuleOptimizer {
    let carrier = Carrier {
        amp: amp.clone(),
        taken: AtomicBool::new(false),
    };
    let mut optim = optim.with_group(ParamGroup::from_ids(vec![ID.into()]), carrier, None);
    put(&mut optim, Stored::Record(Box::new(state)));
    optim
}

/// Makes this state the one of the next checkpoint.
pub(super) fn put(optim: &mut ModuleOptimizer, state: Stored) {
    exchange(optim, Some(state));
}

/// Takes the state out, so that its averages can be changed in place. Also says whether a record was taken since the last time.
pub(super) fn take(optim: &mut ModuleOptimizer) -> (Found, bool) {
    exchange(optim, None)
}

fn exchange(optim: &mut ModuleOptimizer, state: Option<Stored>) -> (Found, bool) {
    MAIL.set((state, None));
    let device = Device::flex();
    let one = || Tensor::<1>::zeros([1], (&device, DType::F32));
    let id = ParamId::from(ID);
    let mut grads = GradientsParams::new();
    grads.register(id, one());
    let param = Tensor::<1>::zeros([1], (&device.clone().autodiff(), DType::F32)).require_grad();
    let _ = optim.step(
        ModuleLearningRate::from(0.0),
        Param::initialized(id, param),
        grads,
    );
    MAIL.take().1.unwrap_or((Found::Nothing, false))
}

/// Carries a state through records; a loaded one sets the loss scale at once, for the first step of the resumed run.
struct Carrier {
    amp: MixedPrecision,
    /// Whether a record was taken since the last step.
    taken: AtomicBool,
}

impl DynOptimizer for Carrier {
    fn step_dyn(
        &self,
        rank: usize,
        _lr: LearningRate,
        tensor: BridgeTensor,
        _grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let found = match state.map(DynState::downcast::<Entry>) {
            None => Found::Plain,
            Some(Entry {
                state: Some(Stored::Record(state)),
                loaded: true,
            }) => Found::Loaded(state),
            Some(_) => Found::Own,
        };
        let state = MAIL.with_borrow_mut(|mail| {
            mail.1 = Some((found, self.taken.swap(false, Ordering::Relaxed)));
            mail.0.take()
        });
        let entry = Entry {
            state,
            loaded: false,
        };
        (tensor, Some(DynState::create(entry, rank)))
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        let record = match &state.downcast_ref::<Entry>().state {
            Some(Stored::Record(record)) => Some((**record).clone()),
            Some(Stored::Pipeline(pipeline)) => pipeline.record(),
            Some(Stored::Fused(steps)) => Some(steps.record()),
            None => None,
        };
        if let Some(record) = record {
            self.taken.store(true, Ordering::Relaxed);
            let bytes = inverted(&to_bytes(record));
            let shape = [bytes.len()];
            out.push_tensor(
                prefix,
                TENSOR,
                TensorData::from_bytes(bytes, shape, DType::U8),
            );
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        let (bytes, ..) = src.take_tensor(prefix, TENSOR)?.into_parts();
        // Burn has no errors here.
        let origin = "the loss scaler's state in the optimizer's record";
        let state = from_bytes(inverted(&bytes), origin).unwrap_or_else(|error| {
            panic!("{error}; `Resume::check` makes this an error that names the file")
        });
        if let Some(scaler) = &state.scaler {
            scaler.resume(&self.amp, "the checkpoint");
        }
        let entry = Entry {
            state: Some(Stored::Record(Box::new(state))),
            loaded: true,
        };
        Some(DynState::create(entry, rank))
    }
}

fn to_bytes(state: AmpRecord) -> Bytes {
    let bytes = state.into_bytes();
    bytes.unwrap_or_else(|error| panic!("the loss scaler's state cannot be written: {error}"))
}

fn from_bytes(bytes: Bytes, origin: &str) -> Result<AmpRecord, AmpError> {
    let record = AmpRecord::from_container(Container::from_bytes(bytes, origin)?)?;
    match record.scaler {
        Some(_) => Ok(record),
        None => Err(record.foreign("no state of a loss scaler")),
    }
}

/// The state in the file of an optimizer; none if it is that of a run without scaler.
pub(super) fn state_in_file(container: &mut Container) -> Result<Option<AmpRecord>, AmpError> {
    let name = format!("{ID}.{TENSOR}");
    let Some(tensor) = container.split_tensors(|other| other == name).pop() else {
        return Ok(None);
    };
    let bytes = tensor.to_bytes();
    let bytes = bytes.map_err(|error| container.damaged(error.to_string()))?;
    from_bytes(inverted(&bytes), container.origin()).map(Some)
}

fn inverted(bytes: &[u8]) -> Bytes {
    Bytes::from_bytes_vec(bytes.iter().map(|byte| !byte).collect())
}
