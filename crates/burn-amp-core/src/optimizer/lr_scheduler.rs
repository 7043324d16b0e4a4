use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::optim::LearningRate;

use crate::scale::{followed::Followed, journal::Cursor};
use crate::{
    border::mixed_precision::MixedPrecision, optimizer::ScaledOptimizer, scaler::Scaler,
    update::module_optim::ModuleOptim,
};

/// A learning-rate scheduler that does not advance on a step that was skipped.
///
/// Wraps any of Burn's, or one of your own. [`step`](Self::step) returns the learning rate of the next step. It is that of the
/// last one again if no step was taken with it: the step was skipped, the gradients were discarded, or they went into a window. In
/// PyTorch, users call `scheduler.step()` only where the scale was not lowered; Accelerate's scheduler does it for them.
///
/// It follows the steps of all optimizers of a [`MixedPrecision`], by hand or in a `Learner`. Where there are several, or a
/// `GradScaler` for half-precision parameters, give it the optimizer instead. Where gradients are not tested (f32) no step is
/// skipped, and it advances as the bare scheduler does.
///
/// ```
/// use burn::{
///     lr_scheduler::linear::LinearLrSchedulerConfig, nn::LinearConfig,
///     optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor},
/// };
/// use burn_amp::{MixedPrecision, ScaledLrScheduler};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let (mut model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), SgdConfig::new().init());
/// let mut lr = ScaledLrScheduler::new(LinearLrSchedulerConfig::new(0.3, 0.1, 2).init()?, &amp);
///
/// let mut rates = Vec::new();
/// for factor in [1.0, f32::INFINITY, 1.0] {
///     let output = amp.autocast(Tensor::<2>::ones([8, 4], &device), |x| model.forward(x));
///     let loss = (output * factor).mean();
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     let rate = lr.step();
///     rates.push(rate.base());
///     model = optim.step(rate, model, grads);
/// }
/// assert_eq!(rates, [0.3, 0.2, 0.2]); // the second step was skipped
/// # Ok(())
/// # }
/// ```
///
/// In a `Learner` it is an [`LrScheduler`], whose one learning rate is that of all parameters. For groups, wrap each
/// scheduler separately: `ModuleLrScheduler::new(ScaledLrScheduler::new(base, &amp)).with_group(group, ScaledLrScheduler::new(other, &amp))`.
///
/// Its records are those of the scheduler inside, which reads them too. Saved after a step that was skipped, they go on with
/// that step's learning rate.
#[derive(Clone)]
pub struct ScaledLrScheduler {
    scheduler: ModuleLrScheduler,
    /// The scheduler as it was before its last step.
    before: ModuleLrScheduler,
    journal: Followed,
    /// The end of the journal before the last step of this; none before the first.
    read: Option<Cursor>,
}

impl ScaledLrScheduler {
    /// Makes `scheduler` follow the steps of a [`MixedPrecision`], a [`ScaledOptimizer`] or a `GradScaler`, given as a reference.
    ///
    /// `scheduler` is what Burn's configurations build, with its groups, or anything that implements [`LrScheduler`].
    pub fn new(scheduler: impl Into<ModuleLrScheduler>, steps: impl Into<Followed>) -> Self {
        let scheduler = scheduler.into();
        Self {
            before: scheduler.clone(),
            scheduler,
            journal: steps.into(),
            read: None,
        }
    }

    /// The learning rates of the next step: new ones, unless no step was taken with the last ones. Never waits for the device.
    /// With a fused optimizer, whose steps do not wait, it sees a skip when its outcome is known: one step later, or up to 17 if the device is
    /// behind. It holds then, unless a step that was taken becomes known with it. [`ScaledOptimizer::synchronize`] before each call makes it exact.
    ///
    /// As Burn's `ModuleLrScheduler::step`. Call it on the thread that steps the optimizer.
    pub fn step(&mut self) -> ModuleLearningRate {
        self.before = self.next().clone();
        self.scheduler = self.before.clone();
        self.read = Some(self.journal.cursor());
        self.scheduler.step()
    }

    /// The state, to be stored: as `ModuleLrScheduler::to_record`.
    pub fn to_record(&self) -> LrSchedulerRecord {
        self.next().to_record()
    }

    /// Takes over a stored state: its own, or that of the scheduler without this. As `ModuleLrScheduler::load_record`.
    pub fn load_record(self, record: LrSchedulerRecord) -> Self {
        let scheduler = self.scheduler.load_record(record);
        Self {
            before: scheduler.clone(),
            scheduler,
            read: None,
            ..self
        }
    }

    /// The scheduler that makes the next step.
    fn next(&self) -> &ModuleLrScheduler {
        match self.is_held() {
            true => &self.before,
            false => &self.scheduler,
        }
    }

    /// Tells whether the optimizer was called since the last step of this, and has not stepped. Where nothing was recorded, it was not called.
    fn is_held(&self) -> bool {
        (self.read).is_some_and(|read| self.journal.cursor().is_held_since(read))
    }
}

/// Gives Burn's `ModuleLrScheduler` and its `Learner` the base learning rate alone.
///
/// # Panics
///
/// In the first step, if the scheduler inside has groups with schedules of their own, which would be lost. Groups with a
/// constant learning rate cannot be seen.
impl LrScheduler for ScaledLrScheduler {
    fn step(&mut self) -> LearningRate {
        let has_groups = || !self.scheduler.to_record().record(FIRST_GROUP).is_empty();
        assert!(
            self.read.is_some() || !has_groups(),
            "a `ScaledLrScheduler` in a `Learner` has one learning rate, but the scheduler inside has groups: wrap each scheduler \
             by itself, as in `ModuleLrScheduler::new(ScaledLrScheduler::new(base, &amp)).with_group(group, \
             ScaledLrScheduler::new(other, &amp))`"
        );
        Self::step(self).base()
    }

    fn to_record(&self) -> LrSchedulerRecord {
        // That of the scheduler by itself, as which a `ModuleLrScheduler` stores it.
        Self::to_record(self).record(BASE)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        let record = LrSchedulerRecord::new().with_record(BASE, record);
        *self = Self::load_record(self.clone(), record);
    }
}

/// The name of the base scheduler in the record of a `ModuleLrScheduler`.
const BASE: &str = "0";
const FIRST_GROUP: &str = "1";

impl From<&MixedPrecision> for Followed {
    fn from(amp: &MixedPrecision) -> Self {
        Self::new(amp.live(), None)
    }
}

/// The steps of its optimizer alone, wherever clones of that step.
impl From<&Scaler> for Followed {
    fn from(scaler: &Scaler) -> Self {
        Self::new(&scaler.live, Some(scaler.place.id.optimizer))
    }
}

impl<O: ModuleOptim> From<&ScaledOptimizer<O>> for Followed {
    fn from(optim: &ScaledOptimizer<O>) -> Self {
        Self::from(&optim.scaler)
    }
}

impl std::fmt::Debug for ScaledLrScheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaledLrScheduler")
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
