//! A `ScaledOptimizer` around any optimizer.

use super::{Executor, alike, counts, optim_shown};
use crate::model::{Gain, RATE, amp, input, loss_of, set, slopes_of, validate, with_options};
use crate::program::{Action, Pass, Program, Shown};
use Action::{
    Clear, Discard, Flush, Load, Rate, Save, Set, Swap, Train, Unscale, Untested, Validate, Wait,
};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, Tensor};
use burn_amp::{MixedPrecision, ScaledOptimizer, optim::ModuleOptim};
use burn_amp_tests::{Pack, contents, device, ranks::Rank};

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
    /// One of several, with its part of each batch.
    rank: Option<Rank>,
}

impl<O: ModuleOptim + Clone> Scaled<O> {
    pub fn new(program: &Program, make: fn() -> O) -> Self {
        Self::of(program, make, None)
    }

    pub fn of(program: &Program, make: fn() -> O, rank: Option<Rank>) -> Self {
        let mut new = Self {
            parts: None,
            other: None,
            is_alone: true,
            program: program.clone(),
            make,
            amp: amp(program),
            rate: RATE,
            saved: None,
            waits: true,
            is_known: true,
            rank,
        };
        new.parts = Some(new.prepared(Gain::new()));
        new
    }

    fn prepared(&self, model: Gain) -> (Gain, ScaledOptimizer<O>) {
        let (model, optim) = self.amp.prepare(model, (self.make)());
        let optim = with_options(optim, &self.program);
        match self.rank.clone() {
            Some(rank) => (model, optim.with_peers(rank)),
            None => (model, optim),
        }
    }

    /// The loss of this rank's part of a pass; none if it has none.
    fn loss(&self, model: &Gain, pass: Pass) -> Option<Tensor<1>> {
        let part = match &self.rank {
            Some(rank) => pass.part(rank.rank, rank.size)?,
            None => [true; 4],
        };
        let slopes = slopes_of(pass.slope, part);
        Some(loss_of(&self.amp, model, pass.shape, input(), slopes))
    }

    /// The gradients of the whole batch.
    fn grads(&self, model: &Gain, pass: Pass) -> GradientsParams {
        let loss = self.loss(model, pass);
        let own = loss.map(|loss| GradientsParams::from_grads(loss.backward(), model));
        self.summed(model, own.unwrap_or_default())
    }

    /// The sum over all ranks.
    fn summed(&self, model: &Gain, mut grads: GradientsParams) -> GradientsParams {
        let Some(rank) = &self.rank else {
            return grads;
        };
        let own = grads.remove::<1>(model.w.id);
        let own = own.map(|own| own.into_data().iter::<f32>().collect());
        if let Some(sum) = rank.sums(vec![own]).remove(0) {
            grads.register(
                model.w.id,
                Tensor::<1>::from_floats(&sum[..], &device().inner()),
            );
        }
        grads
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
            Discard(pass) => optim.discard(self.grads(model, pass)).unwrap(),
            Unscale(pass) => {
                let nothing = || Tensor::<1>::zeros([1], &device()).require_grad();
                let loss = self.loss(model, pass).unwrap_or_else(nothing);
                let mut grads = optim.backward(loss, model);
                let own = std::mem::take(grads.params_mut());
                *grads.params_mut() = self.summed(model, own);
                drop(optim.unscale(grads, model).unwrap());
            }
            Untested(pass) => drop(self.loss(model, pass).map(|loss| loss.backward())),
            Validate => validate(amp, model),
            Clear => optim.drop_window(),
            Rate(exponent) => self.rate = 2f64.powi(exponent),
            Save => self.saved = Some(optim.into_bytes().unwrap()),
            Action::Clone => *optim = optim.clone(),
            Wait => optim.synchronize().unwrap(),
            Action::Drop => self.other = None,
            Set(setting) => set(optim.scaler_mut(), setting),
            Load | Swap | Train(_) | Flush => {}
            Action::Replace(_) => unreachable!("the table leaves it out"),
        }
    }

    fn swap(&mut self) {
        let other = self.other.take();
        let other = other.unwrap_or_else(|| self.prepared(Gain::other_on(&device())));
        self.is_alone = false;
        self.other = self.parts.replace(other);
    }

    fn load(&mut self) {
        let Some(bytes) = self.saved.clone() else {
            return;
        };
        let (model, _) = self.parts.take().unwrap();
        self.amp = amp(&self.program);
        let (model, mut optim) = self.prepared(model.again());
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
                let grads = self.grads(&model, pass);
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
        Some(alike(contents(optim)))
    }
}
