//! [`Scaled`] as a module: the model, and behind it one buffer with the scaler's state.

use burn::{
    module::{Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    store::{ModuleRecord, RecordError},
    tensor::{Device, Int, Tensor},
};
use std::path::Path;

use super::{Scaled, state};
use crate::scaler::GradScalerRecord;

/// Two segments, so that no field of a model is called so.
const PATH: [&str; 2] = ["burn_amp", "scaler"];
const CONTAINER: &str = "Struct:GradScaler";

/// The methods that the helpers below are never asked for.
macro_rules! no_devices {
    () => {
        fn collect_devices(&self, devices: Devices) -> Devices {
            devices
        }

        fn fork(self, _: &Device) -> Self {
            self
        }

        fn to_device(self, _: &Device) -> Self {
            self
        }

        fn train(self) -> Self {
            self
        }

        fn valid(&self) -> Self {
            self.clone()
        }

        fn materialize(self) -> Self {
            self
        }
    };
}

impl<M: Module> Module for Scaled<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.inner.visit(visitor);
        for name in PATH {
            visitor.enter_module(name, CONTAINER);
        }
        visitor.visit_int(&state::to_param(self.state_id, self.scaler.to_record()));
        for name in PATH {
            visitor.exit_module(name, CONTAINER);
        }
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

    /// Takes over a record of a `Scaled` model, or one of the bare model: then the scaler starts fresh, and the log says so.
    ///
    /// # Errors
    ///
    /// Those of the model itself, and [`RecordError::Validation`] if the scaler's state is in the record and damaged
    /// or of a later release. The model is dropped, as by any failed load of Burn's.
    fn try_load_record(mut self, record: ModuleRecord) -> Result<Self, RecordError> {
        if StateOnly::read(&record)?.is_some() {
            self = Plain(self).try_load_record(record)?.0;
            self.go_on();
            return Ok(self);
        }
        self.inner = self.inner.try_load_record(record)?;
        self.scaler.reset();
        self.go_on();
        log::warn!(
            "the record is that of a model without loss scaling: the scaler starts fresh, at loss scale {}",
            f64::from(self.scaler.loss_scale())
        );
        Ok(self)
    }

    /// As [`try_load_record`](Module::try_load_record).
    ///
    /// # Panics
    ///
    /// On its errors, with their message: in a `Learner` that resumes, the file is `checkpoint/model-{epoch}.bpk`. Check
    /// it before with [`check_checkpoint`](super::check_checkpoint).
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
    /// Maps the model and the state, and says whether the mapper has put a state in its place.
    fn map_all<T: ModuleMapper>(mut self, mapper: &mut T) -> (Self, bool) {
        self.inner = self.inner.map(mapper);
        let param = state::to_param(self.state_id, self.scaler.to_record());
        let loaded = match map_state(param, mapper) {
            None => false,
            Some(Ok((id, record))) => {
                self.state_id = id;
                if record != self.scaler.to_record() {
                    self.scaler.load_record(record);
                }
                true
            }
            Some(Err(reason)) => {
                log::warn!("a change to the loss scaler's state was undone: {reason}");
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
fn map_state<T: ModuleMapper>(
    param: Param<Tensor<1, Int>>,
    mapper: &mut T,
) -> Option<Result<(ParamId, GradScalerRecord), String>> {
    for name in PATH {
        mapper.enter_module(name, CONTAINER);
    }
    let param = mapper.map_int(param);
    for name in PATH {
        mapper.exit_module(name, CONTAINER);
    }
    let id = param.id;
    state::from_param(param).map(|state| state.map(|record| (id, record)))
}

/// The state alone, to see whether a record holds it before anything is loaded.
#[derive(Clone, Debug, Default)]
pub(super) struct StateOnly {
    found: Option<Result<GradScalerRecord, String>>,
}

impl StateOnly {
    /// The state in a record; none if it is that of a model without a scaler.
    pub(super) fn read(record: &ModuleRecord) -> Result<Option<GradScalerRecord>, RecordError> {
        let damaged = |reason: String| {
            RecordError::Validation(format!("the loss scaler's state is damaged: {reason}"))
        };
        let record = record.clone().allow_partial(true).allow_unused(true);
        let probe = Self::default()
            .try_load_record(record.validate(true))
            .map_err(|error| damaged(error.to_string()))?;
        probe.found.transpose().map_err(damaged)
    }
}

impl Module for StateOnly {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<T: ModuleMapper>(mut self, mapper: &mut T) -> Self {
        let found = map_state(state::blank_param(), mapper);
        self.found = found.map(|state| state.map(|(_, record)| record));
        self
    }

    no_devices!();
}

/// A model that loads a record as any module does.
#[derive(Clone, Debug)]
struct Plain<M>(Scaled<M>);

impl<M: Module> Module for Plain<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(visitor);
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        Self(self.0.map_all(mapper).0)
    }

    no_devices!();
}
