//! What a record of a [`Scaled`] model holds, and modules that read parts of it.

use burn::{
    module::{Devices, Module, ModuleMapper, ModuleVisitor},
    store::{ModuleRecord, RecordError},
    tensor::Device,
};
use std::collections::BTreeSet;

use super::{
    Scaled,
    averages::{self, Loaded},
    module::map_state,
    state::{self, State, StateError},
};
use crate::{ema::EmaState, param_tensors::ParamTensors};

/// The methods that modules that only load and store are never asked for.
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

/// The state alone, to see whether a record holds it before anything is loaded.
#[derive(Clone, Debug, Default)]
pub(super) struct StateOnly {
    found: Option<Result<State, StateError>>,
}

impl StateOnly {
    /// The state in a record; none if it is that of a model without a scaler.
    pub(super) fn read(record: &ModuleRecord) -> Result<Option<State>, StateError> {
        let record = record.clone().allow_partial(true).allow_unused(true);
        let probe = Self::default()
            .try_load_record(record.validate(true))
            .map_err(|error| StateError::Damaged(error.to_string()))?;
        probe.found.transpose()
    }
}

impl From<StateError> for RecordError {
    fn from(error: StateError) -> Self {
        Self::Validation(error.to_string())
    }
}

impl Module for StateOnly {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<T: ModuleMapper>(mut self, mapper: &mut T) -> Self {
        let found = map_state(state::blank_param(), mapper);
        self.found = found.map(|state| state.map(|(_, state)| state));
        self
    }

    no_devices!();
}

/// The averages alone, to see of which parameters a record holds them: Burn refuses to be asked for one that is missing.
#[derive(Clone, Debug)]
pub(super) struct AveragesOnly<M> {
    model: M,
    paths: BTreeSet<String>,
}

impl<M: Module> AveragesOnly<M> {
    /// The paths of the parameters whose averages are in a record.
    pub(super) fn read(model: &M, record: &ModuleRecord) -> Result<BTreeSet<String>, RecordError> {
        let record = record.clone().allow_partial(true).allow_unused(true);
        let probe = Self {
            model: model.clone(),
            paths: BTreeSet::new(),
        };
        Ok(probe.try_load_record(record)?.paths)
    }
}

impl<M: Module> Module for AveragesOnly<M> {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<T: ModuleMapper>(mut self, mapper: &mut T) -> Self {
        self.paths = averages::load(&self.model, None, mapper).paths;
        self
    }

    no_devices!();
}

/// A scaled model with all that its record holds. A mapper meets the averages of `paths`.
#[derive(Clone, Debug)]
pub(super) struct Recorded<M> {
    pub(super) scaled: Scaled<M>,
    paths: BTreeSet<String>,
    /// The averages that the last mapper had.
    pub(super) found: ParamTensors,
}

impl<M> Recorded<M> {
    pub(super) fn new(scaled: Scaled<M>, paths: BTreeSet<String>) -> Self {
        Self {
            scaled,
            paths,
            found: ParamTensors::default(),
        }
    }
}

impl<M: Module> Module for Recorded<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let scaled = &self.scaled;
        let ema = scaled.options.ema.as_ref();
        let ema = ema.filter(|ema| ema.parameters() > 0);
        scaled.inner.visit(visitor);
        let state = State {
            scaler: scaled.scaler.to_record(),
            ema: ema.map(|ema| EmaState {
                updates: ema.updates(),
            }),
        };
        scaled.visit_state(state, visitor);
        if let Some(ema) = ema {
            averages::visit(&scaled.inner, &ema.averages, visitor);
        }
    }

    fn map<T: ModuleMapper>(mut self, mapper: &mut T) -> Self {
        // The model first: its parameters get the record's ids, under which the averages are kept.
        self.scaled = self.scaled.map_all(mapper).0;
        if !self.paths.is_empty() {
            let Loaded { averages, .. } =
                averages::load(&self.scaled.inner, Some(&self.paths), mapper);
            self.found = averages;
        }
        self
    }

    no_devices!();
}
