//! How the record of a `Learner`'s checkpoint gets into the optimizer's record, and out of it.

use burn::module::{Param, ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Device, Tensor};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::steps::{Resumed, Shared};
use burn_amp_core::internal::{Beside, SECTION, during, locked, or_panic};
use burn_amp_core::{AmpRecord, MixedPrecision};

/// What the optimizer keeps for the parameter.
#[derive(Clone)]
pub(super) enum Entry {
    /// What the next checkpoint is to hold, as it is when that is taken. None while a step is made.
    Steps(Option<Shared>),
    /// What a checkpoint has brought: none if it is that of a run without scaler.
    Loaded(Option<Box<AmpRecord>>),
}

/// What was found in an optimizer.
#[derive(Default)]
pub(super) struct Exchanged {
    /// None in one that has had no scaler yet.
    pub(super) entry: Option<Entry>,
    /// Whether a record was taken since the last time.
    pub(super) was_recorded: bool,
}

thread_local! {
    /// What the next step of the parameter puts into the entry, and what it has found there. Burn's `step` takes and returns nothing of ours.
    static EXCHANGED: Beside<(Option<Shared>, Exchanged)> = const { RefCell::new(None) };
}

/// An optimizer that can carry a state.
pub(super) fn attach(
    optim: ModuleOptimizer,
    amp: &MixedPrecision,
    resumed: &Resumed,
) -> ModuleOptimizer {
    let carrier = Carrier {
        amp: amp.clone(),
        resumed: resumed.clone(),
        recorded: AtomicBool::new(false),
    };
    optim.with_group(ParamGroup::from_ids(vec![SECTION.into()]), carrier, None)
}

/// Takes the state out, and puts in what the next checkpoint is to hold.
pub(super) fn exchange(optim: &mut ModuleOptimizer, steps: Option<&Shared>) -> Exchanged {
    let device = Device::flex();
    let one = || Tensor::<1>::zeros([1], (&device, DType::F32));
    let id = ParamId::from(SECTION);
    let mut grads = GradientsParams::new();
    grads.register(id, one());
    let param = Tensor::from_inner(one()).require_grad();
    let step = || optim.step(0.0, Param::initialized(id, param), grads);
    let (_, (_, found)) = during(&EXCHANGED, (steps.cloned(), Exchanged::default()), step);
    found
}

/// Carries a state through records; a loaded one sets the loss scale at once, for the first step of the resumed run.
struct Carrier {
    amp: MixedPrecision,
    resumed: Resumed,
    /// Whether a record was taken since the last step.
    recorded: AtomicBool,
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
        let found = Exchanged {
            entry: Some(state.map_or(Entry::Loaded(None), DynState::downcast)),
            was_recorded: self.recorded.swap(false, Ordering::Relaxed),
        };
        let before = EXCHANGED.replace(Some((None, found)));
        let steps = before.and_then(|(steps, _)| steps);
        (tensor, Some(DynState::create(Entry::Steps(steps), rank)))
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, _prefix: &str, state: &DynState, out: &mut StateSink) {
        let record = match state.downcast_ref::<Entry>() {
            Entry::Steps(steps) => steps.as_ref().map(|steps| steps.lock().record()),
            Entry::Loaded(record) => record.as_deref().cloned(),
        };
        if let Some(record) = record {
            self.recorded.store(true, Ordering::Relaxed);
            (record.flatten(out)).unwrap_or_else(|error| {
                panic!("the loss scaler's state cannot be written: {error}")
            });
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        _prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        // Burn has no errors here.
        let origin = "the loss scaler's state in the optimizer's record";
        let state = AmpRecord::unflatten(src, origin).unwrap_or_else(|error| {
            panic!("{error}; `Resume::check` makes this an error that names the file")
        })?;
        or_panic(state.resume_scale(&self.amp, "the checkpoint"));
        *locked(&self.resumed) = Some(state.clone());
        Some(DynState::create(Entry::Loaded(Some(Box::new(state))), rank))
    }
}
