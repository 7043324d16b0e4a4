//! A `ScaledOptimizer` around any optimizer.

use super::{Executor, counts, optim_shown};
use crate::model::{Gain, RATE, amp, grads, loss, set, validate, with_options};
use crate::program::{Action, Program, Shown};
use Action::{
    Backoff, Clear, Discard, Flush, Growth, Interval, Load, Rate, Save, Scale, Swap, Tracker,
    Train, Unscale, Untested, Validate, Wait,
};
use burn::tensor::Bytes;
use burn_amp::{MixedPrecision, ScaledOptimizer, optim::ModuleOptim};
use burn_amp_tests::{Pack, contents, device};

pub struct Scaled<O> {
    pub program: Program,
    make: fn() -> O,
    pub amp: MixedPrecision,
    /// None while others have them.
    pub parts: Option<(Gain, ScaledOptimizer<O>)>,
    /// Those that the program has swapped with; none before.
    other: Option<(Gain, ScaledOptimizer<O>)>,
    /// Whether there never were others.
    is_alone: bool,
    pub rate: f64,
    saved: Option<Bytes>,
    waits: bool,
    /// Whether the last call has waited.
    pub is_known: bool,
}

impl<O: ModuleOptim + Clone> Scaled<O> {
    pub fn new(program: &Program, make: fn() -> O) -> Self {
        let amp = amp(program);
        let (model, optim) = amp.prepare(Gain::new(), make());
        Self {
            parts: Some((model, with_options(optim, program))),
            other: None,
            is_alone: true,
            program: program.clone(),
            make,
            amp,
            rate: RATE,
            saved: None,
            waits: true,
            is_known: true,
        }
    }

    /// Shows only what is known without waiting for it.
    pub fn in_flight(self) -> Self {
        Self {
            waits: false,
            ..self
        }
    }

    fn between_steps(&mut self, action: &Action, model: &Gain, optim: &mut ScaledOptimizer<O>) {
        let amp = &self.amp;
        match *action {
            Discard(pass) => optim.discard(grads(amp, model, pass)).unwrap(),
            Unscale(pass) => {
                let grads = optim.backward(loss(amp, model, pass), model);
                drop(optim.unscale(grads, model).unwrap());
            }
            Untested(pass) => drop(loss(amp, model, pass).backward()),
            Validate => validate(amp, model),
            Clear => optim.drop_window(),
            Rate(exponent) => self.rate = 2f64.powi(exponent),
            Save => self.saved = Some(optim.into_bytes().unwrap()),
            Action::Clone => *optim = optim.clone(),
            Wait => optim.synchronize().unwrap(),
            Action::Drop => self.other = None,
            Interval(_) | Growth(_) | Backoff(_) | Tracker(_) | Scale(_) => {
                set(optim.scaler_mut(), *action);
            }
            Load | Swap | Train(_) | Flush => {}
            Action::Replace(_) => unreachable!("the table leaves it out"),
        }
    }

    fn swap(&mut self) {
        let new = || {
            let (model, optim) = self.amp.prepare(Gain::other_on(&device()), (self.make)());
            (model, with_options(optim, &self.program))
        };
        let other = self.other.take().unwrap_or_else(new);
        self.is_alone = false;
        self.other = self.parts.replace(other);
    }

    fn load(&mut self) {
        let Some(bytes) = self.saved.clone() else {
            return;
        };
        let (model, _) = self.parts.take().unwrap();
        self.amp = amp(&self.program);
        let (model, optim) = self.amp.prepare(model.again(), (self.make)());
        let mut optim = with_options(optim, &self.program);
        optim.from_bytes(bytes).unwrap();
        self.parts = Some((model, optim));
    }
}

impl<O: ModuleOptim + Clone> Executor for Scaled<O> {
    fn act(&mut self, action: &Action) {
        let (model, mut optim) = self.parts.take().unwrap();
        let in_flight =
            |action: &Action| matches!(action, Train(_) | Untested(_) | Validate | Rate(_));
        self.is_known = !in_flight(action);
        // Nobody else holds the model: a step may write it in its place.
        let model = match *action {
            Train(pass) => {
                let grads = grads(&self.amp, &model, pass);
                optim.step(self.rate, model, grads)
            }
            Flush => optim.flush(self.rate, model),
            _ => {
                self.between_steps(action, &model, &mut optim);
                model
            }
        };
        self.parts = Some((model, optim));
        match action {
            Load => self.load(),
            Swap => self.swap(),
            _ => {}
        }
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        if !(is_end || self.waits || self.is_known) {
            return None;
        }
        let (model, optim) = self.parts.as_mut().unwrap();
        optim.synchronize().unwrap();
        let shown = optim_shown(model, optim, &self.amp);
        // Of several optimizers, they are the sums.
        if self.is_alone {
            let of_handle = counts(self.amp.counters());
            assert_eq!(shown.counters, of_handle, "the handle's counters");
        }
        assert_eq!(shown.scale, self.amp.loss_scale(), "the handle's scale");
        Some(shown)
    }

    fn record(&mut self) -> Option<Pack> {
        let (_, optim) = self.parts.as_mut()?;
        Some(contents(optim))
    }
}
