//! Burn's SGD, Adam and AdamW as one pass over all parameters.

mod pass;
mod rule;
mod single;
mod state;

use burn::module::{Module, ParamGroup};
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig,
};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, tensor::DType};
use std::marker::PhantomData;

#[cfg(any(test, feature = "counts"))]
pub use self::pass::PASSES;
use self::{rule::FusedConfig, single::Single};
use burn_amp_core::internal::{
    ParamTensors, Takes, Update, fused::ids_with_gradient, masters_of, or_panic, replaced,
};
use burn_amp_core::{AmpError, ModuleOptim};
use burn_amp_torch::internal::Masters;

/// Burn's SGD, with momentum and Nesterov's, in one pass: see [`Fused`].
pub type FusedSgd = Fused<SgdConfig>;

/// Burn's Adam, with AMSGrad, in one pass: see [`Fused`].
pub type FusedAdam = Fused<AdamConfig>;

/// Burn's AdamW, with AMSGrad and cautious weight decay, in one pass: see [`Fused`].
pub type FusedAdamW = Fused<AdamWConfig>;

/// One of Burn's optimizers, its step made in one pass over all parameters: [`FusedSgd`], [`FusedAdam`] or [`FusedAdamW`].
///
/// Burn's own step is a dozen operations for each parameter, and each reads and writes whole tensors. Here a step reads gradient, state and
/// parameter once, and writes state and parameter, in place where nobody else holds them, in one call of
/// [`burn_amp_kernels::update`] for all parameters of a device.
/// The arithmetic is Burn's, operation by operation: on Flex the results are the same bits. Factors of
/// clipping by a norm are f32 numbers here.
///
/// ```
/// use burn::{
///     module::ParamGroup, nn::LinearConfig, optim::{AdamWConfig, GradientsParams},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::{optim::FusedAdamW, MixedPrecision};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let optim = FusedAdamW::new(AdamWConfig::new().with_weight_decay(0.01))
///     .with_group(ParamGroup::from_predicate("bias"), AdamWConfig::new().with_weight_decay(0.0));
/// let (mut model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), optim);
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// ```
///
/// - **Parameters** may be f32, or f16 and bf16: of those an f32 master is kept, as by `MasterWeights`, and stepped in
///   the same pass. Gradients may be f32 or in half precision. f64 parameters, and all on backends without kernels, are stepped by
///   Burn's own optimizer, one by one.
/// - **Records** are Burn's: the optimizer of the same configuration loads them, and this loads that optimizer's. Where parameters are in half
///   precision they are those of `MasterWeights`. A loaded state goes to its parameter's device with the next step, whatever
///   `Device::default()` is.
/// - **Memory** is that of Burn's optimizer. A clone shares the state until either steps.
/// - **`grad_clipping`** of a configuration clips the gradient of each parameter before the pass, by Burn's own operations.
///   [`ScaledOptimizer::with_clipping`](burn_amp_core::ScaledOptimizer::with_clipping) takes no operation: gradients are multiplied in the pass.
///   Clipping by value takes one for each gradient.
/// - **In a `Learner`** ([`MixedPrecision::learner`](burn_amp_core::MixedPrecision), feature `train`), and inside of a
///   `PipelinedOptimizer` there, a step is one pass too. In a Learner of Burn's own
///   ([`into_inner`](Self::into_inner)), and where `ScaledOptimizer::with_own_optimize` has the model's own `TrainStep::optimize` called, Burn's
///   `ModuleOptimizer` hands over parameters one by one, and each has a pass of its own.
#[derive(Clone)]
pub struct Fused<C> {
    /// The error of the first configuration that was refused, if one was: no step is made then.
    optim: Result<ModuleOptimizer, AmpError>,
    config: PhantomData<fn(C)>,
}

impl<C: FusedConfig> Fused<C> {
    /// Takes the settings of Burn's configuration, its `grad_clipping` too.
    ///
    /// Betas are at least 0 and below 1; momentum, epsilon and weight decay at least 0; thresholds of clipping above 0; all of them finite. Burn
    /// takes others too, and trains to NaN or away. Here the first step of a [`ScaledOptimizer`](burn_amp_core::ScaledOptimizer) returns
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range, and so does `ScaledOptimizerConfig::init`.
    pub fn new(config: C) -> Self {
        // `ModuleOptimizer` begins with an optimizer of another kind; the group of all parameters comes behind it.
        let fused = Self {
            optim: Ok(SgdConfig::new().init()),
            config: PhantomData,
        };
        fused.with_group(ParamGroup::all(), config)
    }

    /// Steps the parameters of a group with other settings: without weight decay, for example. The last group that matches counts. The
    /// state of parameters that match is dropped, as by [`ModuleOptimizer::with_group`].
    ///
    /// Settings are refused as those of [`new`](Self::new), where the first that was refused counts.
    pub fn with_group(mut self, group: ParamGroup, config: C) -> Self {
        self.optim = self.optim.and_then(|optim| {
            let (burns, rule, clipping) = config.settings()?;
            let burns = Masters(burns);
            Ok(optim.with_group(group, Single::<C> { burns, rule }, clipping))
        });
        self
    }
}

impl<C> Fused<C> {
    /// Steps the parameters that have a gradient, without loss scaling; see [`ModuleOptimizer::step`]. Does not wait for the device.
    ///
    /// A parameter that is used twice is stepped once. State and parameters go to the gradient's device.
    ///
    /// # Panics
    ///
    /// If a setting is refused, or a gradient, or a state that was loaded, does not have its parameter's shape: [`ScaledOptimizer`](burn_amp_core::ScaledOptimizer) makes
    /// errors of that. The module is lost then, as in Burn's step, and so is the state of this optimizer: resume from the last record.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> M {
        self.update(Update::of(lr.into(), Default::default()), module, grads)
    }

    /// Burn's optimizer with this one's state. It steps parameters one by one, each in a pass of its own.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for settings that [`new`](Self::new) refuses.
    pub fn into_inner(self) -> Result<ModuleOptimizer, AmpError> {
        self.optim
    }

    fn checked(&self) -> Result<&ModuleOptimizer, AmpError> {
        self.optim.as_ref().map_err(AmpError::clone)
    }
}

/// The step of Burn's optimizer with the state of a [`Fused`] one, as one pass.
pub fn one_pass<M: Module>(
    optim: &mut ModuleOptimizer,
    update: Update,
    module: M,
    grads: GradientsParams,
) -> M {
    // Of a parameter that two modules share, Burn steps the first.
    let ids = ids_with_gradient(&module, &grads);
    let factor = |id| update.factors.get(id).copied().unwrap_or(1.0);
    let factors = ids.iter().map(factor).collect();
    let step = || optim.step(update.lr, module, grads);
    let (module, stepped) = pass::collected(update.decides, factors, step);
    let mut stepped = ids.into_iter().zip(stepped).peekable();
    replaced(module, |id, _| stepped.next_if(|(next, _)| *next == id)?.1)
}

impl<C> ModuleOptim for Fused<C> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        Fused::step(self, lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        (parameter == DType::F64) == (gradient == DType::F64)
    }

    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        ModuleOptim::to_record(self.checked()?)
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        let optim = self.optim.as_mut().map_err(|error| error.clone())?;
        ModuleOptim::load_record(optim, record)
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        self.checked()?.check_record(record)
    }

    fn check_settings(&self) -> Result<(), AmpError> {
        self.checked().map(drop)
    }

    fn masters(&self) -> ParamTensors {
        self.optim.as_ref().map(masters_of).unwrap_or_default()
    }

    fn takes(&self) -> Takes {
        Takes {
            decision: true,
            // Its own clipping comes after that of others.
            factors: (self.optim.as_ref()).is_ok_and(|optim| !optim.has_gradient_clipping()),
        }
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        one_pass(or_panic(self.optim.as_mut()), update, module, grads)
    }
}

impl<C> TryFrom<Fused<C>> for ModuleOptimizer {
    type Error = AmpError;

    fn try_from(optim: Fused<C>) -> Result<Self, AmpError> {
        optim.into_inner()
    }
}

impl<C> std::fmt::Debug for Fused<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fused").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::LinearConfig,
        optim::{AdamConfig, GradientsParams},
        tensor::{Device, Tensor},
    };
    use burn_amp_core::{
        EmaConfig, GradientClip, MixedPrecision, ScaledOptimizer,
        internal::{EVENT_READS, READS, learner},
    };
    use std::{
        panic,
        sync::{Arc, mpsc},
        thread,
    };

    use super::FusedAdam;

    #[test]
    fn nobody_waits() {
        let device = Device::default().autodiff();
        let amp = MixedPrecision::f16();
        let linear = LinearConfig::new(4, 2).init(&device);
        let mut model = linear.apply_reparameterization(amp.clone());
        let adam = FusedAdam::new(AdamConfig::new());
        let optim = ScaledOptimizer::new(adam, &amp);
        let clip = GradientClip::GlobalNorm(0.1);
        let optim = optim.with_clipping(clip);
        let mut optim = optim.with_ema(EmaConfig::new());
        for step in 0..11 {
            if step == 1 {
                // The first average is of a step that was taken.
                READS.set(0);
                EVENT_READS.set(0);
            }
            let output = amp.autocast(Tensor::<2>::ones([3, 4], &device), |x| model.forward(x));
            let factor = if step == 4 { 1e9 } else { 1.0 };
            let grads = GradientsParams::from_grads((output.mean() * factor).backward(), &model);
            model = optim.step(0.1, model, grads);
        }
        assert_eq!((READS.get(), EVENT_READS.get()), (0, 0));
        optim.synchronize().unwrap();
        assert_eq!(optim.scaler().counters().steps(), 11);
        assert_eq!(optim.scaler().counters().skipped(), 1);
    }

    /// Nobody resolves the steps in flight of a program that panics: they do not keep its scale for ever.
    #[test]
    fn a_panic_leaves_nothing_in_flight() {
        let (sender, kept) = mpsc::channel();
        let run = move || {
            let device = Device::default().autodiff();
            let amp = MixedPrecision::f16();
            let marker: &Arc<()> = learner::state_of(&amp);
            sender.send(Arc::downgrade(marker)).unwrap();
            let adam = FusedAdam::new(AdamConfig::new());
            let (model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), adam);
            let output = amp.autocast(Tensor::<2>::ones([3, 4], &device), |x| model.forward(x));
            let grads = GradientsParams::from_grads(output.mean().backward(), &model);
            let _model = optim.step(0.1, model, grads);
            panic::resume_unwind(Box::new(()));
        };
        thread::spawn(run).join().unwrap_err();
        assert!(kept.recv().unwrap().upgrade().is_none());
    }
}
