//! The optimizer on a thread of its own.

use super::{Executor, alike, optim_shown, scaler_shown};
use crate::model::{Gain, RATE, amp, burns, grads, loss, set, validate, with_options};
use crate::program::{Action, Program, Setting, Shown};
use burn::tensor::{Bytes, Device};
use burn_amp::pipeline::PipelinedOptimizer;
use burn_amp::{AmpRecord, MixedPrecision, ScaledOptimizer, optim::Scaler};
use burn_amp_tests::{Pack, contents};

pub struct Pipelined {
    program: Program,
    amp: MixedPrecision,
    /// None while a call has it.
    model: Option<Gain>,
    /// None at the end.
    optim: Option<PipelinedOptimizer>,
    rate: f64,
    synchronous: bool,
    saved: Option<Bytes>,
    /// What is left at the end.
    ended: Option<ScaledOptimizer>,
}

impl Pipelined {
    pub fn new(program: &Program, synchronous: bool) -> Self {
        let mut new = Self {
            program: program.clone(),
            amp: amp(program),
            model: Some(Gain::new()),
            optim: None,
            rate: RATE,
            synchronous,
            saved: None,
            ended: None,
        };
        new.start();
        new
    }

    /// Begins with the model as it is, on a fresh handle.
    fn start(&mut self) {
        let model = self.model.take().unwrap();
        let (model, optim) = self.amp.prepare(model, burns());
        let optim = with_options(optim, &self.program);
        let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
        self.model = Some(model);
        self.optim = Some(optim.with_synchronous(self.synchronous));
    }

    fn synchronize(&mut self) {
        let optim = self.optim.as_mut().unwrap();
        self.model = Some(optim.synchronize(self.model.take().unwrap()).unwrap());
    }

    /// Changes a setting on the thread. It is known here when the next update is received.
    fn set(&mut self, setting: Setting) {
        let change = move |scaler: &mut Scaler| {
            set(scaler, setting);
            Ok(())
        };
        self.optim.as_mut().unwrap().queue(change).unwrap();
        if self.synchronous {
            self.synchronize();
        }
    }

    fn load(&mut self) {
        let Some(bytes) = self.saved.clone() else {
            return;
        };
        self.synchronize();
        self.model = self.model.as_ref().map(Gain::again);
        self.amp = amp(&self.program);
        self.start();
        let record = AmpRecord::from_bytes(bytes).unwrap();
        self.optim.as_mut().unwrap().load_record(record).unwrap();
        self.synchronize();
    }
}

impl Executor for Pipelined {
    fn act(&mut self, action: &Action) {
        let (amp, model) = (&self.amp, self.model.clone().unwrap());
        let optim = self.optim.as_mut().unwrap();
        match *action {
            Action::Train(pass) => {
                let grads = grads(amp, &model, pass);
                self.model = Some(optim.step(self.rate, model, grads));
            }
            Action::Flush => self.model = Some(optim.flush(self.rate, model)),
            Action::Untested(pass) => drop(loss(amp, &model, pass).backward()),
            Action::Validate => validate(amp, &model),
            Action::Rate(exponent) => self.rate = 2f64.powi(exponent),
            Action::Set(setting) => self.set(setting),
            Action::Replace(exponent) => optim.set_loss_scale(2f64.powi(exponent)).unwrap(),
            Action::Save => self.saved = Some(optim.to_record().into_bytes().unwrap()),
            Action::Load => self.load(),
            Action::Wait => self.synchronize(),
            Action::Discard(_) | Action::Unscale(_) | Action::Clear => {
                unreachable!("the table leaves it out")
            }
            Action::Clone | Action::Swap | Action::Drop => {
                unreachable!("the table leaves it out")
            }
        }
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        let model = self.model.clone().unwrap();
        if !is_end {
            let scaler = self.optim.as_ref().unwrap().received_scaler();
            return Some(scaler_shown(&model, &scaler, &self.amp));
        }
        let (model, ended) = self.optim.take().unwrap().into_inner(model).unwrap();
        let shown = optim_shown(&model, &ended, &self.amp);
        self.ended = Some(ended);
        Some(shown)
    }

    fn record(&mut self) -> Option<Pack> {
        Some(alike(contents(self.ended.as_mut()?)))
    }
}
