//! [`Scaled`] as a module: the model, and behind it one buffer with the scaler's state.

use burn::{
    module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    store::{ModuleRecord, RecordError},
    tensor::{Device, Int, Tensor},
};
use std::{collections::BTreeSet, path::Path};

use super::{
    Scaled, averages,
    recorded::{AveragesOnly, Recorded, StateOnly},
    state::{self, State, StateError},
};
use crate::ema::EmaRecord;

/// Two segments, so that no field of a model is called so.
const PATH: [&str; 2] = ["burn_amp", "scaler"];
const CONTAINER: &str = "Struct:GradScaler";

impl<M: Module> Module for Scaled<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.inner.visit(visitor);
        // Without averages: the optimizer, casts and counts of parameters must not meet them.
        self.visit_state(State::of_scaler(self.scaler.to_record()), visitor);
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        let (mut module, loaded) = self.map_all(mapper);
        if loaded {
            module.go_on();
        }
        module
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        self.inner.collect_devices(devices)
    }

    fn fork(mut self, device: &Device) -> Self {
        self.inner = self.inner.fork(device);
        self
    }

    fn to_device(mut self, device: &Device) -> Self {
        self.inner = self.inner.to_device(device);
        self
    }

    /// As the model's. One whose run has failed takes steps again.
    fn train(mut self) -> Self {
        self.inner = self.inner.train();
        self.forget_failure();
        self
    }

    fn valid(&self) -> Self {
        let mut valid = self.clone();
        valid.inner = self.inner.valid();
        valid
    }

    fn materialize(mut self) -> Self {
        self.inner = self.inner.materialize();
        self
    }

    /// The record of the model, the scaler's state and the averages, if [`ScaledOptimizer::with_ema`] keeps any: one tensor for
    /// each, `burn_amp.ema.` and the parameter's path. That of a group
    /// ([`into_record_group`](Module::into_record_group)) has no averages, nor has that of a module around this one.
    ///
    /// [`ScaledOptimizer::with_ema`]: crate::ScaledOptimizer::with_ema
    fn into_record(self) -> ModuleRecord {
        Recorded::new(self, BTreeSet::new()).into_record()
    }

    /// Takes over a record of a `Scaled` model, or one of the bare model: then the scaler starts fresh, and the log says so.
    ///
    /// Averages that are kept here and missing in the record start fresh too, which the log says. The schedule's settings
    /// are the record's; [`scaler_mut`](Scaled::scaler_mut) changes them. A failure that has ended a run is
    /// forgotten: the model takes steps again.
    ///
    /// # Errors
    ///
    /// Those of the model itself, and [`RecordError::Validation`] if the scaler's state is in the record and damaged
    /// or of a later release, or averages are in it that are not kept here. The model is dropped, as by any failed load
    /// of Burn's.
    fn try_load_record(mut self, record: ModuleRecord) -> Result<Self, RecordError> {
        let Some(state) = StateOnly::read(&record)? else {
            self.inner = self.inner.try_load_record(record)?;
            self.scaler.reset();
            log::warn!(
                "the record is that of a model without loss scaling: the scaler starts fresh, at loss scale {}",
                f64::from(self.scaler.loss_scale())
            );
            if let Some(ema) = &mut self.options.ema {
                ema.reset();
            }
            self.go_on();
            return Ok(self);
        };
        let paths = match (&state.ema, &self.options.ema) {
            (Some(_), Some(_)) => AveragesOnly::read(&self.inner, &record)?,
            _ => BTreeSet::new(),
        };
        if let (Some(ema), Some(_), true) = (&state.ema, &self.options.ema, paths.is_empty()) {
            return Err(RecordError::Validation(format!(
                "the record tells of averages of the weights after {} updates and holds none of them",
                ema.updates
            )));
        }
        let foreign = self.options.ema.is_none();
        let loaded = Recorded::new(self, paths).try_load_record(record);
        let loaded = loaded.map_err(|error| match (error, foreign) {
            (RecordError::Validation(reason), true) if reason.contains(averages::PREFIX) => RecordError::Validation(format!(
                "{reason}; the record holds averages of the weights, but none are kept here: use \
                 `ScaledOptimizer::with_ema`, or leave them out with `ModuleRecord::allow_unused`"
            )),
            (error, _) => error,
        })?;
        let Recorded {
            mut scaled, found, ..
        } = loaded;
        if let Some(ema) = &mut scaled.options.ema {
            match &state.ema {
                Some(state) => ema.load_record(EmaRecord {
                    updates: state.updates,
                    averages: found,
                }),
                None => {
                    ema.reset();
                    log::warn!("the record holds no averages of the weights: they start fresh");
                }
            }
        }
        scaled.go_on();
        Ok(scaled)
    }

    /// As [`try_load_record`](Module::try_load_record).
    ///
    /// # Panics
    ///
    /// On its errors, with their message: in a `Learner` that resumes, the file is `checkpoint/model-{epoch}.bpk`, which
    /// [`checkpointers`](super::checkpointers) name. Check it before with [`check_checkpoint`](super::check_checkpoint).
    fn load_record(self, record: ModuleRecord) -> Self {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("the record of the model cannot be loaded: {error}"))
    }

    /// As [`try_load_record`](Module::try_load_record), from a file, which the error names.
    fn try_load_file<P: AsRef<Path>>(self, path: P) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let named = |error| match error {
            RecordError::Io(reason) => RecordError::Io(format!("{}: {reason}", path.display())),
            RecordError::Validation(reason) => {
                RecordError::Validation(format!("{}: {reason}", path.display()))
            }
        };
        let record = ModuleRecord::load(path).map_err(named)?;
        self.try_load_record(record).map_err(named)
    }
}

impl<M: Module> Scaled<M> {
    pub(super) fn visit_state<V: ModuleVisitor>(&self, state: State, visitor: &mut V) {
        for name in PATH {
            visitor.enter_module(name, CONTAINER);
        }
        visitor.visit_int(&state::to_param(self.state_id, state));
        for name in PATH {
            visitor.exit_module(name, CONTAINER);
        }
    }

    /// Maps the model and the scaler's state, and says whether the mapper has put a state in its place.
    pub(super) fn map_all<T: ModuleMapper>(mut self, mapper: &mut T) -> (Self, bool) {
        self.inner = self.inner.map(mapper);
        let present = self.scaler.to_record();
        let param = state::to_param(self.state_id, State::of_scaler(present.clone()));
        let loaded = match map_state(param, mapper) {
            None => false,
            Some(Ok((id, state))) => {
                self.state_id = id;
                if state.scaler != present {
                    self.scaler.load_record(state.scaler);
                }
                true
            }
            Some(Err(error)) => {
                log::warn!("a change to the loss scaler's state was undone: {error}");
                false
            }
        };
        (self, loaded)
    }
}

impl<M> Scaled<M> {
    /// Goes on from a state that was loaded, whatever was before.
    fn go_on(&mut self) {
        self.forget_failure();
        self.monitor.publish(&self.scaler);
    }

    /// Takes steps again. The monitor tells of the failure until then.
    fn forget_failure(&mut self) {
        self.ignored = None;
        self.past = self.monitor.failure();
    }
}

/// What a mapper has put in the place of the state; none if it left the state alone.
pub(super) fn map_state<T: ModuleMapper>(
    param: Param<Tensor<1, Int>>,
    mapper: &mut T,
) -> Option<Result<(ParamId, State), StateError>> {
    for name in PATH {
        mapper.enter_module(name, CONTAINER);
    }
    let param = mapper.map_int(param);
    for name in PATH {
        mapper.exit_module(name, CONTAINER);
    }
    let id = param.id;
    state::from_param(param).map(|state| state.map(|state| (id, state)))
}
