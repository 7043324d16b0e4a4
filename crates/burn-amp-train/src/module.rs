//! [`Scaled`] as a module: the model.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, ParamGroup};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Device;

use std::mem::take;

use super::{Scaled, run};
use burn_amp_core::internal::learner::resolve;

impl<M> Scaled<M> {
    /// One whose run has failed takes steps again.
    fn restart(&mut self) {
        if take(&mut self.failed) {
            run::reset(&self.amp);
        }
    }
}

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

    /// Forks the model. Each fork is a worker: those of `ddp` make the optimizer's steps together, each with the sum of all gradients.
    fn fork(mut self, device: &Device) -> Self {
        // Steps in flight are those of the one that is forked. A thread stays one update behind.
        if self.steps.kind.thread.is_none() {
            resolve(&mut self.steps.state().optim);
            self.steps.update();
        }
        self.inner = self.inner.fork(device);
        self.trained = self.trained.map(|trained| trained.fork(device));
        self.steps = self.steps.fork();
        self
    }

    fn to_device(mut self, device: &Device) -> Self {
        self.inner = self.inner.to_device(device);
        self.trained = self.trained.map(|trained| trained.to_device(device));
        self
    }

    /// Gives the model's own, with the weights that were trained. One whose run has failed takes steps again.
    fn train(mut self) -> Self {
        self.inner = self.trained.take().unwrap_or(self.inner).train();
        self.restart();
        self
    }

    /// Gives the model's own, with the averages of the weights if
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
        self.reloaded = self.steps.state().thread.is_some();
        self.trained = None;
        self.restart();
        Ok(self)
    }
}
