//! How the record of a `Learner`'s checkpoint gets into the optimizer's record, and out of it.

use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Device, Tensor};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use super::{Shared, Steps};
use burn_amp_core::internal::learner::{self, SECTION, placeholders};
use burn_amp_core::internal::{distinct_parameters, during, locked, or_panic};
use burn_amp_core::{AmpRecord, MixedPrecision};

/// The record of a checkpoint that was loaded, until the first step goes on from it: a run that is at its end makes none.
#[derive(Clone, Debug)]
pub(crate) struct Resumed {
    pub(crate) amp: MixedPrecision,
    pub(crate) record: Arc<Mutex<Option<AmpRecord>>>,
}

/// The entries that the next step of the parameter puts into the optimizer, and takes out of it.
type Exchanged = (Option<Shared>, Option<Entry>);

thread_local! {
    /// A place for both: Burn's `step` takes and returns nothing of ours.
    static EXCHANGED: RefCell<Option<Exchanged>> = const { RefCell::new(None) };
}

/// An optimizer that can carry an entry.
pub(crate) fn attach(optim: ModuleOptimizer, resumed: &Resumed) -> ModuleOptimizer {
    with_entries(optim, vec![SECTION.into()], resumed)
}

fn with_entries(optim: ModuleOptimizer, ids: Vec<ParamId>, resumed: &Resumed) -> ModuleOptimizer {
    optim.with_group(ParamGroup::from_ids(ids), Carrier(resumed.clone()), None)
}

/// Puts entries in the place of the states of the learner's own optimizer, which a thread has from now on.
pub(super) fn hand_over<M: Module>(optim: &mut ModuleOptimizer, model: &M, steps: &Steps) {
    let mut trained = distinct_parameters(model);
    trained.retain(|parameter| parameter.is_trained);
    let ids = trained.iter().map(|parameter| parameter.id).collect();
    *optim = with_entries(optim.clone(), ids, &steps.resumed);
    // Burn makes states in a step alone.
    let grads = placeholders(trained);
    let step = || optim.step(0.0, model.clone(), grads);
    during(&EXCHANGED, (Some(steps.shared.clone()), None), step);
}

/// Takes the entry out, and puts in what the next checkpoint is to hold. There is none in an optimizer that has had no scaler yet.
pub(crate) fn exchange(optim: &mut ModuleOptimizer, steps: Option<Shared>) -> Option<Entry> {
    let device = Device::flex();
    let one = || Tensor::<1>::zeros([1], (&device, DType::F32));
    let id = ParamId::from(SECTION);
    let mut grads = GradientsParams::new();
    grads.register(id, one());
    let param = Tensor::from_inner(one()).require_grad();
    let step = || optim.step(0.0, Param::initialized(id, param), grads);
    let (_, (_, found)) = during(&EXCHANGED, (steps, None), step);
    found
}

/// The state of the parameter that no model has; and in a run whose optimizer steps on a thread, the state of each parameter.
#[derive(Clone)]
pub(crate) enum Entry {
    /// The steps of the run, which know what a checkpoint is to hold when it is taken. None while a step is made.
    Steps(Option<Shared>),
    /// The record of a checkpoint that was loaded: none if it is that of a run without scaler.
    Loaded(Option<Box<AmpRecord>>),
}

/// Carries entries through records. One that is loaded sets the loss scale at once, for the first step of the resumed run.
struct Carrier(Resumed);

impl DynOptimizer for Carrier {
    fn step_dyn(
        &self,
        rank: usize,
        _lr: LearningRate,
        tensor: BridgeTensor,
        _grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let steps = EXCHANGED.with_borrow_mut(|exchanged| {
            let (steps, found) = exchanged.get_or_insert_default();
            *found = Some(state.map_or(Entry::Loaded(None), DynState::downcast));
            steps.clone()
        });
        (tensor, Some(DynState::create(Entry::Steps(steps), rank)))
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        let record = match state.downcast_ref::<Entry>() {
            Entry::Steps(Some(steps)) if prefix != SECTION.to_string() => {
                return locked(steps).flatten(prefix, out);
            }
            Entry::Steps(steps) => steps.as_ref().map(|steps| locked(steps).record()),
            Entry::Loaded(record) => record.as_deref().cloned(),
        };
        if let Some(record) = record {
            learner::write(record, out).unwrap_or_else(|error| {
                panic!("the loss scaler's state cannot be written: {error}")
            });
        }
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        if prefix != SECTION.to_string() {
            // A run whose optimizer steps on a thread, which refuses the record with the next step.
            return None;
        }
        // Burn has no errors here.
        let state = learner::read(src).unwrap_or_else(|error| {
            panic!("{error}; `Resume::check` makes this an error that names the file")
        })?;
        or_panic(learner::set_scale(&self.0.amp, &state));
        *locked(&self.0.record) = Some(state.clone());
        Some(DynState::create(Entry::Loaded(Some(Box::new(state))), rank))
    }
}
