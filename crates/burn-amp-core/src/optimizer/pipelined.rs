//! Steps that another thread makes: what the thread that trains keeps of them, what comes back, and how they end, on the one scale.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use std::collections::VecDeque;
use std::mem::{replace, take};
use std::sync::Arc;

use super::{ScaledOptimizer, host::Decided};
use crate::error::AmpError;
use crate::gradients::{GradientStatus, StepGradients, UnscaledGradients};
use crate::lock::quietly;
use crate::scale::{account::Call, border_events::BorderEvent, finding::Finding};
use crate::scale::{journal::Caller, loss_scale::StepOutcome, regions::PassRegions};
use crate::scaler::{Failed, Scaler};
use crate::{update::module_optim::ModuleOptim, values::Parameter};

/// The parameters of a module that are trained, with their values on the training device: as they were handed over, or images of masters.
pub type Trained = Arc<Vec<Parameter>>;

/// The side of an optimizer that trains, and has the scale. Another thread has the rest.
#[derive(Debug)]
pub struct TrainingSide {
    /// Its scaler, with the scale that scopes apply.
    pub scaler: Scaler,
    /// The border events of gradients that were sent, and wait for their step.
    window: VecDeque<BorderEvent>,
    /// The loss scale that is to follow the next update, whatever its outcome.
    pub next_scale: Option<f64>,
    /// The parameters that came with the last results, until the module has them.
    pub image: Option<Trained>,
    /// The outcome of the step that has ended, until running statistics are repaired after it.
    ended: Option<StepOutcome>,
}

/// A step that was sent, and of which nothing has come back: what its passes have left.
#[derive(Clone, Debug)]
pub struct SentStep {
    events: VecDeque<BorderEvent>,
    regions: PassRegions,
}

/// The result of what the other thread was sent.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// The outcome of gradients; none where there were none to step with: a module was handed over.
    outcome: Option<StepOutcome>,
    /// The findings in them; none where they wait in a window.
    found: Option<Found>,
    /// The parameters, where they have changed.
    image: Option<Trained>,
}

/// The result of a module that was handed over.
impl From<Option<Trained>> for Made {
    fn from(image: Option<Trained>) -> Self {
        Self {
            image,
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug)]
struct Found {
    finding: Finding,
    status: Option<Arc<GradientStatus>>,
    /// The parameters whose gradients overflow.
    overflows: Vec<String>,
    has_nan: bool,
}

impl TrainingSide {
    /// Takes this side of an optimizer. Refuses one whose ranks decide together: they would wait for each other in another order.
    pub fn of<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>) -> Result<Self, AmpError> {
        if optim.scaler.ranks.is_some() {
            let allowed = "none for a pipelined optimizer";
            return Err(AmpError::refused("peers", "given", allowed));
        }
        optim.resolve();
        let copy = optim.scaler.snapshot();
        let window = optim.options.window.as_mut();
        Ok(Self {
            scaler: replace(&mut optim.scaler, copy),
            window: window.map_or_else(VecDeque::new, |window| take(&mut window.state.events)),
            next_scale: None,
            image: None,
            ended: None,
        })
    }

    /// Gives it back, or a copy of it.
    pub fn give_back<O: ModuleOptim>(self, optim: &mut ScaledOptimizer<O>) {
        optim.scaler = self.scaler;
        if let Some(window) = &mut optim.options.window {
            window.state.events = self.window;
        }
    }

    /// A copy with a scale of its own, to test gradients by, or to look ahead.
    pub fn copy(&self) -> Self {
        Self {
            scaler: self.scaler.snapshot(),
            window: self.window.clone(),
            next_scale: self.next_scale,
            image: None,
            ended: None,
        }
    }

    /// The scaler itself, for a thread that loads a record while this one waits.
    pub fn twin(&self) -> Scaler {
        self.scaler.at(self.scaler.place.clone())
    }

    /// Refuses gradients while several optimizers move the scale.
    pub fn check(&mut self, grads: Option<&StepGradients>) -> Result<(), AmpError> {
        let scaler = &mut self.scaler;
        if scaler.live.is_shared(None) {
            return Err(AmpError::refused(
                "optim",
                "one of several optimizers of a `MixedPrecision`",
                "the only one: give each network that is pipelined its own",
            ));
        }
        match grads {
            // Unscaled before the optimizer was given to the pipeline.
            Some(StepGradients::Unscaled(grads)) => grads.count(&scaler.dropped),
            Some(StepGradients::Plain(_))
                if scaler.precision().is_none() && scaler.is_enabled() =>
            {
                scaler.watch.check_plain();
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes up what the pass has left whose gradients are sent.
    pub fn take_pass(&mut self) {
        self.scaler.check_scopes();
        self.scaler.live.move_to_window(&mut self.window, &[]);
        // Measured now: the gradients themselves are not kept.
        let events = take(&mut self.window).into_iter();
        self.window = events
            .filter_map(BorderEvent::measured_unless_here)
            .collect();
    }

    /// Begins a step with all that was taken up since the last one.
    pub fn begin_step(&mut self) -> SentStep {
        let Self { scaler, window, .. } = self;
        scaler.live.note_test(scaler.place.id, Vec::new);
        // Passes before a flush explain nothing, here as elsewhere.
        drop(scaler.live.events.take());
        let regions = scaler.live.regions.lock().take_passes();
        SentStep {
            events: take(window),
            regions,
        }
    }

    /// Repairs the running statistics of a module after a step, if one has ended. `is_behind` if it has made another forward pass since.
    pub fn leave_step<M: Module>(&mut self, module: &M, is_behind: bool) {
        let overflows = self.scaler.live.overflows();
        let outcome = self.ended.take();
        (self.scaler.buffers).after_step(module, outcome, false, is_behind, overflows);
    }

    /// Receives the result of a step, which ends, of a micro-batch, or of a module that was handed over.
    ///
    /// # Errors
    ///
    /// If the thread has refused it, or has ended. Those of the end of any step. If the scale cannot be set that is to follow it.
    pub fn receive(
        &mut self,
        step: Option<SentStep>,
        made: &Result<Made, AmpError>,
    ) -> Result<(), AmpError> {
        // A micro-batch was entered as a call when it was sent.
        let caller = step.is_some().then(Caller::here);
        let Made {
            outcome,
            found,
            image,
        } = made.clone().unwrap_or_default();
        self.image = image.or(self.image.take());
        if let (Some(step), Some(found)) = (step, found) {
            self.ended = outcome;
            return self.end_step(step, found);
        }
        if made.is_err() || outcome.is_some() {
            let call = outcome.map(|outcome| Call::of(outcome, None));
            let (live, id) = (&self.scaler.live, self.scaler.place.id);
            live.enter(id, call.unwrap_or_default(), caller);
        }
        made.as_ref().map(drop).map_err(AmpError::clone)
    }

    /// Ends a step by what was found in its gradients. It is explained by what its own passes have left: others are under way.
    fn end_step(&mut self, sent: SentStep, found: Found) -> Result<(), AmpError> {
        let live = self.scaler.live.clone();
        let since = live.regions.lock().take_passes();
        live.regions.lock().join_passes(sent.regions);
        let before = live.schedule();
        let mut finding = found.finding;
        if finding.overflow().is_some() {
            let overflows = found.overflows.iter().map(String::as_str);
            let cause = live.cause_of(BorderEvent::of_skip(sent.events), overflows);
            finding.explain(cause.counted(|| found.has_nan));
        } else {
            live.events.restore_window(sent.events);
        }
        let ended = self.scaler.end_step(&finding, found.status);
        live.regions.lock().join_passes(since);
        let is_update = |_: &mut f64| finding.outcome() != StepOutcome::NoGradients;
        if let Some(scale) = self.next_scale.take_if(is_update) {
            // In the place of what the update has reached: PyTorch's `update(new_scale)`.
            live.set_schedule(before.with_scale("loss_scale", scale)?);
            live.account(self.scaler.place.id, |account| account.end_row());
        }
        ended.map(drop)
    }
}

/// Makes a step with gradients, or a part of one, on the other thread. `scaler` is a copy that came with them: the step ends on the thread that trains.
/// `image` makes that of a module that was updated, or that hooks may have changed.
///
/// # Errors
///
/// If they are refused.
pub fn make_step<O: ModuleOptim, M: Module>(
    optim: &mut ScaledOptimizer<O>,
    scaler: Scaler,
    lr: ModuleLearningRate,
    module: M,
    grads: Option<StepGradients>,
    loss: Option<f64>,
    image: impl FnOnce(&M) -> Trained,
) -> (M, Result<Made, AmpError>) {
    (optim.scaler, optim.options.loss) = (scaler, loss);
    let mut found = None;
    let end = |scaler: &mut Scaler, grads: &UnscaledGradients| {
        found = Some(Found {
            finding: grads.finding.clone(),
            status: grads.known_status(),
            overflows: grads.overflows().map(String::from).collect(),
            has_nan: grads.finding.skips() && grads.has_nan(),
        });
        // As it ends there, so that a hook whose rejection ends the run is as it was before.
        quietly(|| scaler.end_step(&grads.finding, None))
    };
    let (module, outcome, image) = match optim.decide(&module, grads, &lr, end) {
        Ok(Decided { outcome, grads }) => match grads {
            Some(grads) => {
                let module = optim.apply(lr, module, grads, None, O::update);
                let image = image(&module);
                (module, Some(outcome), Some(image))
            }
            None => (module, Some(outcome), None),
        },
        Err(Failed {
            outcome: None,
            error,
        }) => return (module, Err(error)),
        Err(Failed { outcome, .. }) => (module, outcome, None),
    };
    let made = Made {
        outcome,
        found,
        image,
    };
    (module, Ok(made))
}
