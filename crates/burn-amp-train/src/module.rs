//! [`Scaled`] as a module: the model.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, ParamGroup};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Device;

use std::mem::take;

use super::{Scaled, run, stepper::Kind};

impl<M: Module + 'static> Module for Scaled<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.inner.visit(visitor);
    }

    fn map<T: ModuleMapper>(mut self, mapper: &mut T) -> Self {
        self.inner = self.inner.map(mapper);
        self.trained = self.trained.map(|trained| trained.map(mapper));
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        self.inner.collect_devices(devices)
    }

    /// As the model's. Each fork counts as an optimizer of its own: that of a worker of `ddp` steps by itself.
    fn fork(self, device: &Device) -> Self {
        let mut fork = match self.steps.kind {
            // Steps in flight are those of the one that is forked. A thread stays one update behind.
            Kind {
                fused: true,
                thread: None,
                ..
            } => self.resolved(),
            _ => self,
        };
        fork.inner = fork.inner.fork(device);
        fork.trained = fork.trained.map(|trained| trained.fork(device));
        fork.steps = fork.steps.fork();
        fork
    }

    fn to_device(mut self, device: &Device) -> Self {
        self.inner = self.inner.to_device(device);
        self.trained = self.trained.map(|trained| trained.to_device(device));
        self
    }

    /// As the model's, with the weights that were trained. One whose run has failed takes steps again.
    fn train(mut self) -> Self {
        self.inner = self.trained.take().unwrap_or(self.inner).train();
        if take(&mut self.failed)
            && let Some(amp) = self.scaler().precision()
        {
            run::reset(amp);
        }
        self
    }

    /// As the model's, with the averages of the weights if
    /// [`EmaConfig::validation`](burn_amp_core::EmaConfig::validation) asks for them.
    fn valid(&self) -> Self {
        let mut valid = self.clone().newest();
        valid.steps = valid.steps.for_validation();
        let ema = valid.ema().filter(|ema| ema.config().validation).cloned();
        if let (Some(ema), None) = (ema, &self.trained) {
            valid.trained = Some(valid.inner.clone());
            valid.inner = ema.module(&valid.inner);
        }
        valid.inner = valid.inner.valid();
        valid
    }

    fn materialize(mut self) -> Self {
        self.inner = self.inner.materialize();
        self
    }

    /// The model's own record: the bare model reads it.
    fn into_record(self) -> ModuleRecord {
        self.newest().inner.into_record()
    }

    fn into_record_group(self, group: ParamGroup) -> ModuleRecord {
        self.newest().inner.into_record_group(group)
    }

    /// Takes over the model's own record. The scaler stays; one whose run has failed takes steps again.
    fn try_load_record(mut self, record: ModuleRecord) -> Result<Self, RecordError> {
        self.inner = self.inner.try_load_record(record)?;
        self.reloaded = self.steps.shared.lock().has_thread();
        self.trained = None;
        self.failed = false;
        Ok(self)
    }
}
