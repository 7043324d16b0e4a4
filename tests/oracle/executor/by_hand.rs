//! A `GradScaler` by its four calls, with a window and averages beside it.

use super::{Executor, average, scaler_shown};
use crate::model::{
    Gain, RATE, amp, averages, burns, clip, grads, groups, loss, set, validate, windows,
};
use crate::program::{Action, Clip, Hooks, Program, Shown};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Bytes;
use burn_amp::gradients::{AccumulationWindow, UnscaledGradients};
use burn_amp::torch::GradScaler;
use burn_amp::{Ema, MixedPrecision, StepOutcome};
use burn_amp_tests::{Files, Pack, state};

#[derive(Clone)]
struct Parts {
    optim: ModuleOptimizer,
    window: AccumulationWindow,
    ema: Option<Ema>,
}

impl Parts {
    fn new(program: &Program) -> Self {
        Self {
            optim: burns(),
            window: windows(program).init().unwrap(),
            ema: program.averages.then(|| averages().init().unwrap()),
        }
    }
}

pub struct ByHand {
    program: Program,
    amp: MixedPrecision,
    model: Gain,
    scaler: GradScaler,
    parts: Parts,
    rate: f64,
    /// That of the next update.
    next_scale: Option<f64>,
    /// Of the optimizer, and of scaler, window and averages.
    saved: Option<(Bytes, Vec<Bytes>)>,
}

impl ByHand {
    pub fn new(program: &Program) -> Self {
        let amp = amp(program);
        Self {
            program: program.clone(),
            model: amp.attach(Gain::new()),
            scaler: GradScaler::from(&amp),
            amp,
            parts: Parts::new(program),
            rate: RATE,
            next_scale: None,
            saved: None,
        }
    }

    fn step(&mut self, grads: UnscaledGradients) {
        let clipped = match self.program.clip {
            Some(Clip::Group) => grads.clip_groups(&groups()),
            Some(rule) => grads.clip(&clip(rule)),
            None => Ok(grads),
        };
        let grads = clipped.unwrap();
        let model = self.model.clone();
        self.model = (self.scaler).step(&mut self.parts.optim, self.rate, model, grads);
        let outcome = self.scaler.last_outcome();
        // A step without gradients was made, and has changed nothing.
        let is_applied = [StepOutcome::Stepped, StepOutcome::NoGradients]
            .map(Some)
            .contains(&outcome);
        if let Some(ema) = &mut self.parts.ema
            && is_applied
        {
            self.model = ema.update(self.model.clone());
        }
        let is_update = outcome != Some(StepOutcome::NoGradients);
        match self.next_scale.take_if(|_| is_update) {
            Some(scale) => self.scaler.update_to(scale).unwrap(),
            None => self.scaler.update().unwrap(),
        };
    }

    fn save(&mut self) {
        let parts = &self.parts;
        let optim = parts.optim.to_record().into_bytes().unwrap();
        let mut records = vec![self.scaler.bits(), parts.window.bits()];
        records.extend(parts.ema.as_ref().map(Files::bits));
        self.saved = Some((optim, records));
    }

    fn load(&mut self) {
        let Some((optim, records)) = self.saved.clone() else {
            return;
        };
        self.amp = amp(&self.program);
        self.model = self.amp.attach(self.model.again());
        self.scaler = GradScaler::from(&self.amp);
        let mut parts = Parts::new(&self.program);
        let optim = OptimizerRecord::from_bytes(optim).unwrap();
        parts.optim = parts.optim.load_record(optim);
        let mut owners: Vec<&mut dyn Files> = vec![&mut self.scaler, &mut parts.window];
        owners.extend(parts.ema.as_mut().map(|ema| ema as &mut dyn Files));
        for (owner, record) in owners.into_iter().zip(records) {
            owner.from_bytes(record).unwrap();
        }
        (self.parts, self.next_scale) = (parts, None);
    }
}

impl Executor for ByHand {
    fn act(&mut self, action: &Action) {
        let (amp, model, scaler) = (&self.amp, &self.model, &mut self.scaler);
        match *action {
            Action::Train(pass) if self.program.micro_batches > 1 => {
                let grads = grads(amp, model, pass);
                let full = scaler.accumulate(&mut self.parts.window, grads, model);
                if let Some(grads) = full.unwrap() {
                    self.step(grads);
                }
            }
            Action::Train(pass) => {
                let grads = scaler.backward(loss(amp, model, pass), model);
                let grads = scaler.unscale(grads, model).unwrap();
                self.step(grads);
            }
            Action::Flush => {
                if let Some(grads) = scaler.flush(&mut self.parts.window, model) {
                    self.step(grads);
                }
            }
            Action::Discard(pass) => scaler.discard(grads(amp, model, pass)).unwrap(),
            Action::Validate => validate(amp, model),
            Action::Clone => self.parts = self.parts.clone(),
            Action::Set(setting) => set(scaler, setting),
            Action::Replace(exponent) => self.next_scale = Some(2f64.powi(exponent)),
            Action::Clear => self.parts.window.clear(),
            Action::Untested(pass) => drop(loss(amp, model, pass).backward()),
            Action::Rate(exponent) => self.rate = 2f64.powi(exponent),
            Action::Save => self.save(),
            Action::Load => self.load(),
            Action::Wait => {}
            Action::Unscale(_) | Action::Swap | Action::Drop => {
                unreachable!("the table leaves it out")
            }
        }
    }

    fn shown(&mut self, _: bool) -> Option<Shown> {
        let ema = self.parts.ema.as_ref();
        let average = ema.and_then(|ema| average(ema, &self.model));
        Some(Shown {
            hooks: Some(Hooks { judged: 0, average }),
            ..scaler_shown(&self.model, &self.scaler, &self.amp)
        })
    }

    /// Each part has its own.
    fn record(&mut self) -> Option<Pack> {
        Some(state(&self.parts.optim))
    }
}
