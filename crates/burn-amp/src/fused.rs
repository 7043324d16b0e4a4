//! Burn's SGD, Adam and AdamW as one pass over all parameters.

mod pass;
mod rule;
mod state;

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param, ParamGroup, ParamId},
    optim::{
        AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig,
    },
    tensor::{DType, Tensor},
};
use std::{collections::HashSet, marker::PhantomData, sync::Arc, vec};

#[cfg(all(test, feature = "train"))]
pub(crate) use self::pass::PASSES;
use self::{
    pass::Stepped,
    rule::{FusedConfig, Settings},
    state::Fuse,
};
use crate::{
    ahead::Ahead,
    clip::Factors,
    convert::replace_value,
    error::AmpError,
    master_weights::masters_of,
    module_optim::{ModuleOptim, records_of},
    module_path::{self, ModulePath},
    param_tensors::ParamTensors,
};

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
/// The arithmetic is Burn's, operation by operation: on Flex the results are the same bits.
///
/// ```
/// use burn::{
///     module::{Module, ParamGroup}, nn::LinearConfig, optim::{AdamWConfig, GradientsParams},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::{FusedAdamW, MixedPrecision, ScaledOptimizer};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
/// let optim = FusedAdamW::new(AdamWConfig::new().with_weight_decay(0.01))?
///     .with_group(ParamGroup::from_predicate("bias"), AdamWConfig::new().with_weight_decay(0.0))?;
/// let mut optim = ScaledOptimizer::new(optim, &amp);
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// - **Parameters** may be f32, or f16 and bf16: of those an f32 master is kept, as by [`MasterWeights`](crate::MasterWeights), and stepped in
///   the same pass. Gradients may be f32 or in half precision. For f64 parameters, and on backends without kernels, Burn's own operations
///   do the same.
/// - **Records** are Burn's: the optimizer of the same configuration loads them, and this loads that optimizer's. Where parameters are in half
///   precision they are those of `MasterWeights`. A loaded state goes to its parameter's device with the next step, whatever
///   `Device::default()` is.
/// - **Memory** is that of Burn's optimizer. A clone shares the state until either steps.
/// - **`grad_clipping`** of a configuration clips the gradient of each parameter before the pass, by Burn's own operations.
///   [`ScaledOptimizer::with_clipping`](crate::ScaledOptimizer::with_clipping) takes no operation: gradients are multiplied in the pass.
///   Clipping by value takes one for each gradient.
/// - **In a `Learner`** ([`MixedPrecision::learner`](crate::MixedPrecision), feature `train`), and inside of a
///   [`PipelinedOptimizer`](crate::PipelinedOptimizer) there, a step is one pass too. In a Learner of Burn's own
///   ([`into_inner`](Self::into_inner)), and with a model that has a `TrainStep::optimize` of its own, Burn's `ModuleOptimizer` hands over
///   parameters one by one, and each has a pass of its own.
#[derive(Clone)]
pub struct Fused<C> {
    optim: ModuleOptimizer,
    /// Whether a group has clipping of its own.
    clips: bool,
    config: PhantomData<fn(C)>,
}

impl<C: FusedConfig> Fused<C> {
    /// Takes the settings of Burn's configuration, its `grad_clipping` too.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: betas are at least 0 and below 1; momentum, epsilon
    /// and weight decay at least 0; thresholds of clipping above 0; all of them finite. Burn takes others too, and trains to NaN or away.
    pub fn new(config: C) -> Result<Self, AmpError> {
        // `ModuleOptimizer` begins with an optimizer of another kind; the group of all parameters comes behind it.
        let fused = Self {
            optim: SgdConfig::new().init(),
            clips: false,
            config: PhantomData,
        };
        fused.with_group(ParamGroup::all(), config)
    }

    /// Steps the parameters of a group with other settings: without weight decay, for example. The last group that matches counts. The
    /// state of parameters that match is dropped, as by [`ModuleOptimizer::with_group`].
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_group(mut self, group: ParamGroup, config: C) -> Result<Self, AmpError> {
        let Settings { rule, clipping } = config.settings()?;
        self.clips |= clipping.is_some();
        self.optim = self.optim.with_group(group, Fuse::new(rule), clipping);
        Ok(self)
    }
}

impl<C> Fused<C> {
    /// Steps the parameters that have a gradient, without loss scaling; see [`ModuleOptimizer::step`]. Does not wait for the device.
    ///
    /// A parameter that is used twice is stepped once. State and parameters go to the gradient's device.
    ///
    /// # Panics
    ///
    /// If a gradient, or a state that was loaded, does not have its parameter's shape: [`ScaledOptimizer`](crate::ScaledOptimizer) makes
    /// errors of that. The module is lost then, as in Burn's step, and so is the state of this optimizer: go on from the last record.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> M {
        step_by(self, None, &Factors::new(), lr.into(), module, grads)
    }

    /// Burn's optimizer with this one's state. It steps parameters one by one, each in a pass of its own.
    pub fn into_inner(self) -> ModuleOptimizer {
        self.optim
    }
}

/// The step of an optimizer. That of a [`Fused`] one is one pass: if the device says so, where there is somebody who asks it, and with
/// gradients that are multiplied by their factors first.
pub(crate) fn step_by<M: Module>(
    optim: &mut impl ModuleOptim,
    verdict: Option<&Arc<Ahead>>,
    factors: &Factors,
    lr: ModuleLearningRate,
    module: M,
    grads: GradientsParams,
) -> M {
    let Some(optim) = optim.one_pass() else {
        return optim.step(lr, module, grads);
    };
    let mut stepped = Trained {
        grads: &grads,
        ids: HashSet::new(),
        by: factors,
        factors: Vec::new(),
    };
    module_path::visit(&module, &mut stepped);
    let (ids, factors) = (stepped.ids, stepped.factors);
    let step = || optim.step(lr, module, grads);
    let (module, values) = pass::collected(verdict, factors, step);
    let mut put = PutBack {
        ids,
        values: values.into_iter(),
    };
    module_path::map(module, &mut put)
}

/// The parameters that have a gradient.
struct Trained<'a> {
    grads: &'a GradientsParams,
    ids: HashSet<ParamId>,
    by: &'a Factors,
    /// In the order in which Burn steps.
    factors: Vec<f32>,
}

impl module_path::Visit for Trained<'_> {
    fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
        if self.grads.get::<D>(param.id).is_some() && self.ids.insert(param.id) {
            let factor = self.by.get(&param.id).copied();
            self.factors.push(factor.unwrap_or(1.0));
        }
    }
}

/// Puts parameters where they were taken from. Of one that stands twice, Burn steps the first.
struct PutBack {
    ids: HashSet<ParamId>,
    values: vec::IntoIter<Stepped>,
}

impl module_path::Map for PutBack {
    fn parameter<const D: usize>(
        &mut self,
        _path: &ModulePath,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        if !self.ids.remove(&param.id) {
            return param;
        }
        match self
            .values
            .next()
            .expect("each that has a gradient was stepped")
        {
            None => param,
            Some(value) => {
                let id = param.id;
                param.map(|placeholder| replace_value(placeholder, pass::tensor(value), id))
            }
        }
    }
}

impl<C> ModuleOptim for Fused<C> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        Fused::step(self, lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        (parameter == DType::F64) == (gradient == DType::F64)
    }

    records_of!(self => self.optim);

    fn masters(&self) -> ParamTensors {
        masters_of(&self.optim)
    }

    fn steps_unheard(&self) -> bool {
        true
    }

    /// Its own clipping comes after that of others.
    fn takes_factors(&self) -> bool {
        !self.clips
    }

    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        Some(&mut self.optim)
    }
}

impl<C> From<Fused<C>> for ModuleOptimizer {
    fn from(optim: Fused<C>) -> Self {
        optim.into_inner()
    }
}

impl<C> std::fmt::Debug for Fused<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fused").finish_non_exhaustive()
    }
}
