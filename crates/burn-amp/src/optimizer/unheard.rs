//! Steps that a device has been given, and of whose outcomes the host has not heard.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Device, Tensor},
};
use burn_amp_kernels::{Reading, Status, TensorList, can_update, inspect};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::ScaledOptimizer;
#[cfg(test)]
use crate::gradient_pass::READS;
use crate::{
    ahead::{Ahead, Run},
    clip::{ClipRules, Factors},
    entries::{Entry, Traversal, handles},
    error::AmpError,
    fused::step_by,
    gradient_status::summarize,
    gradients::{StepGradients, UnscaledGradients},
    live_scale::{Noted, OneCrossing, Place},
    module_optim::ModuleOptim,
    scaler::GradScaler,
};

/// Steps that the host may be ahead of what it has heard: the device has enough to do then, and an error is not far.
const FURTHEST: usize = 16;

/// Gradients of a step: as many as the device can clip.
const MOST: usize = 1 << 16;

/// A step of which the host has not heard.
#[derive(Debug)]
struct Unheard {
    entries: Vec<Entry>,
    /// What was found in its gradients, and where they came to the border.
    reading: Reading,
    /// Where they came to the border.
    place: Option<(u64, Place)>,
    /// Where it stands in a run.
    run: Arc<Run>,
    number: usize,
    /// Whether the loss scale has moved by it: the optimizer's copies share that.
    is_told: AtomicBool,
}

impl Unheard {
    /// Tells a scaler the outcome; how many steps were taken.
    fn tell<O: ModuleOptim>(
        &self,
        scaler: &mut GradScaler,
        optim: &O,
        clip: &ClipRules,
    ) -> Result<u64, AmpError> {
        scaler.forget_last_call();
        #[cfg(test)]
        if !self.reading.is_there() {
            READS.set(READS.get() + 1);
        }
        let (statuses, crossed) = self.reading.wait(scaler.border_scale());
        if statuses.iter().any(|status| status.non_finite > 0) {
            self.run.add_skip(self.number);
        }
        scaler.put_back(self.place.clone().into_iter().zip(crossed));
        let status = summarize(&self.entries, &statuses);
        let (gradients, entries) = (GradientsParams::new(), self.entries.clone());
        let grads = UnscaledGradients::new(gradients, entries, status, Some(statuses));
        let mut grads = scaler.blamed(grads);
        if !clip.is_empty() {
            // The device has done it: what is left is to say so.
            grads = grads.clip_by(clip, 1.0, true)?.0;
        }
        let decided = scaler.decide(optim, grads);
        let taken = u64::from(matches!(decided, Ok(Some(_))));
        let nothing: Vec<Param<Tensor<1>>> = Vec::new();
        scaler.end_call(&nothing, false, false);
        decided?;
        scaler.try_update()?;
        Ok(taken)
    }

    /// Tells a scaler the outcome that has moved its loss scale before.
    fn tell_again<O: ModuleOptim>(
        &self,
        scaler: &mut GradScaler,
        optim: &O,
        clip: &ClipRules,
    ) -> Result<u64, AmpError> {
        let mut apart = scaler.apart();
        let told = self.tell(&mut apart, optim, clip);
        scaler.count_as(apart);
        told
    }
}

/// The steps that a device has been given and that the host has not heard of.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    steps: VecDeque<Arc<Unheard>>,
    /// The run that they belong to, and the parameters that it steps.
    run: Option<(Arc<Run>, Vec<ParamId>)>,
    /// What was wrong with one, until somebody can be told.
    error: Option<AmpError>,
    /// Whether there are to be none.
    is_shut: bool,
}

impl Unread {
    /// Begins a run over these parameters.
    pub(super) fn begin(&mut self, run: Arc<Run>, ids: Vec<ParamId>) {
        self.run = Some((run, ids));
    }

    /// The run that goes on with these parameters.
    pub(super) fn run_of(&self, ids: impl Iterator<Item = ParamId>) -> Option<Arc<Run>> {
        let (run, known) = self.run.as_ref()?;
        known.iter().copied().eq(ids).then(|| run.clone())
    }

    /// Adds a step of the run, with what was found in its gradients and where they came to the border.
    pub(super) fn push(
        &mut self,
        entries: Vec<Entry>,
        status: Status,
        crossing: Option<OneCrossing>,
    ) {
        let (place, crossing) = crossing.unzip();
        let run = self.run.as_ref().map(|(run, _)| run.clone());
        let run = run.unwrap_or_default();
        self.steps.push_back(Arc::new(Unheard {
            entries,
            reading: status.start(crossing.into_iter().collect()),
            place,
            number: run.give(),
            run,
            is_told: AtomicBool::new(false),
        }));
    }

    /// The state that they belong to was replaced.
    pub(super) fn forget(&mut self) {
        *self = Self {
            is_shut: self.is_shut,
            ..Self::default()
        };
    }
}

/// A copy hears of the same steps, and begins a run of its own. Of the two, the first to hear moves the scale that they share.
impl Clone for Unread {
    fn clone(&self) -> Self {
        Self {
            steps: self.steps.clone(),
            run: None,
            error: None,
            is_shut: self.is_shut,
        }
    }
}

/// A step that the device can decide by itself.
pub(crate) struct Start {
    entries: Vec<Entry>,
    crossing: Option<OneCrossing>,
    ahead: Arc<Ahead>,
    /// Of its gradients; nobody has read it.
    status: Status,
}

/// Why a step waits for the device.
pub(crate) enum Waits {
    For(&'static str),
    Error(AmpError),
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Waits until the outcomes of all steps are known here: to scale, counters, metrics and schedulers.
    ///
    /// With an optimizer that lets the device decide ([`FusedAdam`](crate::FusedAdam) and its like) the host hears of a step while it
    /// makes the next ones. Records wait by themselves. Does nothing elsewhere.
    ///
    /// # Panics
    ///
    /// Where [`try_synchronize`](Self::try_synchronize) returns an error, with its message.
    pub fn synchronize(&mut self) {
        self.try_synchronize()
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`synchronize`](Self::synchronize), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] or [`AmpError::LossNotFinite`] if one of the steps was an overflow too many.
    pub fn try_synchronize(&mut self) -> Result<(), AmpError> {
        // Those of a backward pass that has no step yet.
        let noted = self.scaler.take_noted();
        let heard = self.hear(true);
        self.scaler.note_again(noted);
        self.end_run();
        heard
    }

    /// From here on the host moves the scale.
    pub(crate) fn end_run(&mut self) {
        if self.unread.run.take().is_some() {
            self.scaler.go_ahead(None);
        }
    }

    /// Every step is heard of before it returns: for a thread that nobody waits for.
    pub(crate) fn hear_every_step(&mut self) {
        self.settle_unheard();
        self.unread.is_shut = true;
    }

    /// The inner optimizer, in the middle of steps of which nobody has heard.
    #[cfg(feature = "train")]
    pub(crate) fn optimizer_unheard(&mut self) -> &mut O {
        &mut self.optim
    }

    /// Before the state is looked at or changed: the next step tells what was wrong.
    pub(crate) fn settle_unheard(&mut self) {
        if let Err(error) = self.try_synchronize() {
            self.unread.error = Some(error);
        }
    }

    /// Takes what is known of the steps so far; all of it, if it `waits`. Of steps that are further back than [`FURTHEST`] it waits to hear.
    pub(crate) fn hear(&mut self, waits: bool) -> Result<(), AmpError> {
        if let Some(error) = self.unread.error.take() {
            return Err(error);
        }
        loop {
            let waits = waits || self.unread.steps.len() > FURTHEST;
            let is_known = |step: &mut Arc<Unheard>| waits || step.reading.is_there();
            match self.unread.steps.pop_front_if(is_known) {
                Some(step) => self.learn(&step)?,
                None => return Ok(()),
            }
        }
    }

    /// Takes the outcome of a step, as if it had been waited for, and shows it.
    fn learn(&mut self, step: &Unheard) -> Result<(), AmpError> {
        let clip = &self.options.clip;
        let taken = match step.is_told.swap(true, Ordering::AcqRel) {
            true => step.tell_again(&mut self.scaler, &self.optim, clip)?,
            false => {
                let steps = self.scaler.counters().steps();
                let learned = step.tell(&mut self.scaler, &self.optim, clip);
                self.publish(steps);
                self.scaler.tell(learned.as_ref().err());
                learned?
            }
        };
        if let Some(ema) = &mut self.options.ema {
            ema.count(taken);
        }
        Ok(())
    }

    /// The scaler as it is when all steps are known, and how many of them were taken; none if they are known.
    pub(crate) fn settled_scaler(&self) -> Option<(GradScaler, u64)> {
        if self.unread.steps.is_empty() {
            return None;
        }
        let mut scaler = self.scaler.apart();
        let tell = |step: &Arc<Unheard>| match step.is_told.load(Ordering::Acquire) {
            true => step.tell_again(&mut scaler, &self.optim, &self.options.clip),
            false => step.tell(&mut scaler, &self.optim, &self.options.clip),
        };
        // The next step tells what was wrong.
        let taken = self.unread.steps.iter().flat_map(tell).sum();
        Some((scaler, taken))
    }

    /// Begins a step that nobody waits for; none if the host has to decide it: all steps before are known then.
    pub(crate) fn begin_unheard<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &StepGradients,
    ) -> Result<Option<Start>, AmpError> {
        if !self.optim.steps_unheard() {
            return Ok(None);
        }
        // Of this step's own backward pass.
        let mut noted = self.scaler.take_noted();
        let heard = self.hear(false);
        let start = heard.map(|()| match grads {
            StepGradients::Plain(grads) if self.waits_for().is_none() => {
                self.start(lr, module, grads, &mut noted)
            }
            _ => None,
        });
        if let Ok(Some(start)) = start {
            return Ok(Some(start));
        }
        let heard = start.and_then(|_| self.hear(true));
        self.scaler.note_again(noted);
        self.end_run();
        heard.map(|()| None)
    }

    /// Makes the step.
    pub(crate) fn step_unheard<M: Module>(
        &mut self,
        start: Start,
        lr: ModuleLearningRate,
        module: M,
        mut grads: GradientsParams,
    ) -> M {
        self.scaler.check_scopes();
        self.options.clip.limit(&mut grads, &start.entries);
        let crossing = start.crossing.as_ref().map(|(_, crossing)| crossing);
        let next = Arc::new(start.ahead.advance(&start.status, crossing));
        self.scaler.go_ahead(Some(next.clone()));
        let module = step_by(
            &mut self.optim,
            Some(&next),
            &Factors::new(),
            lr,
            module,
            grads,
        );
        if let Some(ema) = &mut self.options.ema {
            ema.update_unheard(&module, &|| self.optim.masters(), next.found_inf());
        }
        self.unread
            .push(start.entries, start.status, start.crossing);
        module
    }

    /// Why no step can be recorded, whatever its gradients are.
    pub(super) fn cannot_record(&self) -> Option<&'static str> {
        if self.options.ema.is_some() {
            return Some("it averages the weights (`with_ema`)");
        }
        self.waits_for()
    }

    /// What has to be read between the gradients and the step, whatever they are.
    fn waits_for(&self) -> Option<&'static str> {
        let options = &self.options;
        let waits = [
            (
                !self.optim.steps_unheard(),
                "the optimizer is not a fused one (`FusedSgd`, `FusedAdam`, `FusedAdamW`), and takes numbers of the host",
            ),
            (self.unread.is_shut, "a pipeline takes its steps"),
            (
                self.loaded.is_some(),
                "a loaded state was not compared with the model yet",
            ),
            (
                options.window.is_some(),
                "it accumulates micro-batches (`with_accumulation`)",
            ),
            (
                options.guard.is_some(),
                "a guard looks at its gradients (`with_guard`)",
            ),
            (
                !options.clip.is_empty() && !self.optim.takes_factors(),
                "it clips gradients (`with_clipping`) before the optimizer clips them too",
            ),
            (
                !self.scaler.can_go_ahead(),
                "its loss scale is moved by the host: by a `GradScaler` without a `MixedPrecision`, by several optimizers, by a \
                schedule that looks at gradients, or in steps that are no powers of two; or a flight recorder looks at it",
            ),
        ];
        waits
            .into_iter()
            .find_map(|(waits, what)| waits.then_some(what))
    }

    /// What a step begins with; none if it has to wait.
    fn start<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &GradientsParams,
        noted: &mut VecDeque<Noted>,
    ) -> Option<Start> {
        let (entries, crossing, pass) = self.look(lr, module, grads, noted).ok()?;
        let ema = self.options.ema.as_ref();
        let averages = ema.is_none_or(|ema| ema.can_update_unheard(module, &entries[0].device));
        let begun = match averages && entries.len() <= MOST {
            true => self.ahead(&entries).zip(inspect(pass).ok()),
            false => None,
        };
        let Some((ahead, status)) = begun else {
            noted.extend(crossing.map(Noted::again));
            return None;
        };
        Some(Start {
            entries,
            crossing,
            ahead,
            status,
        })
    }

    /// The gradients of a step that the device can decide, and where they came to the border; or why it cannot.
    pub(super) fn look<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &GradientsParams,
        noted: &mut VecDeque<Noted>,
    ) -> Result<(Vec<Entry>, Option<OneCrossing>, TensorList), Waits> {
        let traversal = Traversal {
            grads: Some(grads),
            lr: Some(lr),
            ..Default::default()
        };
        // What is refused is refused by the step that waits.
        let mut entries = traversal.of(module).map_err(Waits::Error)?;
        if !entries.take_statistics().is_empty() {
            return Err(Waits::For(
                "the model has running statistics, as BatchNorm's, which a step that is skipped looks at",
            ));
        }
        if entries.adapted.is_some() {
            return Err(Waits::For("the base of a low-rank adapter has gradients"));
        }
        let entries = entries.into_gradients();
        let Some(device) = entries.first().map(|entry| &entry.device) else {
            return Err(Waits::For("no parameter has a gradient"));
        };
        let fits = |entry: &Entry| {
            entry.device == *device
                && entry.gradient != DType::F64
                && entry.parameter != DType::F64
                && self.optim.accepts(entry.parameter, entry.gradient)
        };
        if !entries.iter().all(fits) || !has_kernels(device) {
            return Err(Waits::For(
                "the parameters are not all on one device, in f32, f16 or bf16",
            ));
        }
        let (pass, _) = handles(grads, &entries, None);
        let Some(pass) = pass.only() else {
            return Err(Waits::For("the gradients are not all on one device"));
        };
        match Noted::only(std::mem::take(noted)) {
            Ok(crossing) => Ok((entries, crossing, pass)),
            Err(all) => {
                *noted = all;
                Err(Waits::For(
                    "gradients come from several scopes, or from `rescaled` parts whose factors move",
                ))
            }
        }
    }

    /// The loss scale on the device: of the run that goes on with these gradients, or of a new one, for which the host hears of all steps
    /// before.
    fn ahead(&mut self, entries: &[Entry]) -> Option<Arc<Ahead>> {
        let ids = entries.iter().map(|entry| entry.id);
        let run = self.unread.run_of(ids.clone());
        let goes_on = |ahead: &Arc<Ahead>| {
            run.as_ref()
                .is_some_and(|run| Arc::ptr_eq(run, ahead.run()))
        };
        if let Some(ahead) = self.scaler.ahead().filter(goes_on) {
            return Some(ahead);
        }
        if let Err(error) = self.hear(true) {
            self.unread.error = Some(error);
            return None;
        }
        let ahead = self.scaler.begin_ahead(&entries[0].device)?;
        let ahead = ahead.clipping(self.options.clip.table(entries));
        self.unread.begin(ahead.run().clone(), ids.collect());
        Some(Arc::new(ahead))
    }
}

/// Whether the kernels of a step run there.
fn has_kernels(device: &Device) -> bool {
    can_update(&Tensor::<1>::empty([0], (device, DType::F32)))
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::LinearConfig,
        optim::{AdamConfig, GradientsParams},
        tensor::{Device, Tensor},
    };

    use super::READS;
    use crate::{EmaConfig, FusedAdam, GradientClip, MixedPrecision, ScaledOptimizer, live_scale};

    #[test]
    fn nobody_waits() {
        let device = Device::default().autodiff();
        let amp = MixedPrecision::f16();
        let linear = LinearConfig::new(4, 2).init(&device);
        let mut model = linear.apply_reparameterization(amp.clone());
        let adam = FusedAdam::new(AdamConfig::new()).unwrap();
        let optim = ScaledOptimizer::new(adam, &amp);
        let clip = GradientClip::GlobalNorm(0.1);
        let optim = optim.with_clipping(clip).unwrap();
        let mut optim = optim.with_ema(EmaConfig::new()).unwrap();
        for step in 0..11 {
            if step == 1 {
                // The first average is of a step that was taken.
                READS.set(0);
                live_scale::READS.set(0);
            }
            let output = amp.autocast(Tensor::<2>::ones([3, 4], &device), |x| model.forward(x));
            let factor = if step == 4 { 1e9 } else { 1.0 };
            let grads = GradientsParams::from_grads((output.mean() * factor).backward(), &model);
            model = optim.step(0.1, model, grads);
        }
        assert_eq!((READS.get(), live_scale::READS.get()), (0, 0));
        optim.synchronize();
        assert_eq!(optim.scaler().counters().steps(), 11);
        assert_eq!(optim.scaler().counters().skipped(), 1);
    }
}
