use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType};
use burn_amp_kernels::{UnsupportedDType, check_server, refuses_two_dtypes};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::observer::Observer;
use crate::scale::loss_scale::{GradScalerConfig, LossScale, StepOutcome};
use crate::{
    error::AmpError, gradients::GradientStatus, lock::locked, scale::journal::Journal,
    scale::live_scale::LiveScale, scale::step_counters::StepCounters, values::is_half,
};

/// Half-precision compute for any model, over parameters that stay f32, with the loss scale that it needs.
///
/// [`attach`](Self::attach), or [`prepare`](Self::prepare) with an optimizer, makes every float parameter of a model appear in half
/// precision inside [`autocast`](Self::autocast). Elsewhere (validation, records, optimizers, a head in f32) parameters
/// are f32 ("master weights" in Micikevicius et al., "Mixed Precision Training", 2018).
///
/// The loss scale lives at the border of half precision: gradients are multiplied by it where they are f16, and nowhere
/// else. What leaves a scope is f32 and unscaled. [`ScaledOptimizer`](crate::ScaledOptimizer) tests the gradients and moves the
/// scale.
///
/// Cheap to clone, and clones share one loss scale: make one for a program, and give clones to its models and optimizers. Attach low-rank
/// adapters *before* it, with the base frozen. `Module::materialize` detaches it.
///
/// ```
/// use burn::{
///     nn::LinearConfig, optim::{AdamConfig, GradientsParams},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::MixedPrecision;
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let (mut model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let output = amp.autocast(input, |x| model.forward(x));
/// let loss = output.square().mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(1e-3, model, grads);
/// # let _ = model;
/// ```
#[derive(Clone)]
pub struct MixedPrecision {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    dtype: FloatDType,
    /// Set where there is a loss scale.
    enabled: bool,
    live: Arc<LiveScale>,
    extension: OnceLock<Box<dyn Any + Send + Sync>>,
    observer: Mutex<Option<Arc<dyn Observer>>>,
    /// Set while a `Learner` trains with it.
    in_learner: AtomicBool,
    /// Set once a model was attached.
    pub(super) attached: AtomicBool,
    /// The parameter that was read last on a thread that is in no scope, and when: in the order of the border events.
    pub(super) read_elsewhere: Mutex<Option<(u64, Arc<str>)>>,
    /// Set where it computes on devices that do not refuse two dtypes.
    allows_unchecked: bool,
    /// Devices that tensors have come from, and that are fine.
    devices: Mutex<Vec<Device>>,
}

/// Set once the program has made a handle in half precision.
static HALF_EXISTS: AtomicBool = AtomicBool::new(false);

/// Says whether the program computes in half precision somewhere.
pub(super) fn half_exists() -> bool {
    HALF_EXISTS.load(Ordering::Relaxed)
}

impl MixedPrecision {
    /// Compute in f16: 11 significant bits, 6e-8 to 65504. With a dynamic loss scale.
    pub fn f16() -> Self {
        Self::new(FloatDType::F16)
    }

    /// Compute in bf16: 8 significant bits, the range of f32, which needs no loss scale. Its scale stays at 1, and multiplies nothing.
    ///
    /// Gradients are tested as in f16: a step whose gradients are infinite or NaN is skipped, counted and logged, and more in a row than
    /// [`max_consecutive_skips`](GradScalerConfig::max_consecutive_skips) end the run. Turned off by [`enabled`](GradScalerConfig::enabled):
    ///
    /// ```
    /// use burn_amp::{GradScalerConfig, MixedPrecision};
    ///
    /// let untested = MixedPrecision::bf16().with_scaler(GradScalerConfig::new().with_enabled(false))?;
    /// # let _ = untested;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    pub fn bf16() -> Self {
        Self::new(FloatDType::BF16)
    }

    /// Everything in f32, unchanged, and gradients are not tested: turns half precision off from one place.
    pub fn f32() -> Self {
        Self::new(FloatDType::F32)
    }

    /// Compute in `dtype`: as [`f16`](Self::f16), [`bf16`](Self::bf16) and [`f32`](Self::f32), and in others as in f32.
    ///
    /// f64 parameters stay f64 in all of them.
    pub fn new(dtype: FloatDType) -> Self {
        let config = GradScalerConfig::new();
        let config = match dtype {
            FloatDType::F16 => config,
            FloatDType::BF16 => config.with_init_scale(1.0).with_dynamic(false),
            _ => config.with_enabled(false),
        };
        let schedule = config.schedule().expect("the defaults are valid");
        Self::with_live(dtype, LiveScale::new(schedule), false)
    }

    fn with_live(dtype: FloatDType, live: LiveScale, allows_unchecked: bool) -> Self {
        if is_half(dtype.into()) {
            HALF_EXISTS.store(true, Ordering::Relaxed);
        }
        Self {
            shared: Arc::new(Shared {
                dtype,
                enabled: live.config().enabled,
                live: Arc::new(live),
                extension: OnceLock::new(),
                observer: Mutex::default(),
                in_learner: AtomicBool::new(false),
                attached: AtomicBool::new(false),
                read_elsewhere: Mutex::default(),
                allows_unchecked,
                devices: Mutex::default(),
            }),
        }
    }

    /// A handle with a loss scale of its own, in the same state.
    pub(crate) fn detached(&self) -> Self {
        let allows_unchecked = self.shared.allows_unchecked;
        Self::with_live(self.shared.dtype, self.live().detached(), allows_unchecked)
    }

    /// The same precision with other settings of the loss scale, as a new handle: call it before clones are made.
    ///
    /// ```
    /// use burn_amp::{GradScalerConfig, MixedPrecision};
    ///
    /// let amp = MixedPrecision::f16().with_scaler(GradScalerConfig::new().with_growth_interval(500))?;
    /// // f32 needs no scale; this one skips steps whose gradients are not finite, as bf16 does by itself.
    /// let f32 = MixedPrecision::f32()
    ///     .with_scaler(GradScalerConfig::new().with_init_scale(1.0).with_dynamic(false))?;
    /// # let _ = (amp, f32);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], as [`GradScalerConfig::schedule`], and as [`with_schedule`](Self::with_schedule).
    pub fn with_scaler(self, config: GradScalerConfig) -> Result<Self, AmpError> {
        self.with_schedule(config.schedule()?)
    }

    /// The same precision with another loss scale, its settings and its [rule](crate::schedule::Rule) included, as a new handle: call it
    /// before clones are made.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if it was stored under a rule of your own that it was not given again: [`LossScale::with_rule`]. For an
    /// `init_scale` below 2^-126 and a `min_scale` above 2^126, too: scopes apply no scale beyond, unless it is turned off.
    pub fn with_schedule(self, schedule: LossScale) -> Result<Self, AmpError> {
        let schedule = schedule.check_rule()?;
        LiveScale::check(schedule.config())?;
        let (dtype, allows_unchecked) = (self.shared.dtype, self.shared.allows_unchecked);
        Ok(Self::with_live(
            dtype,
            LiveScale::new(schedule),
            allows_unchecked,
        ))
    }

    /// The same precision on devices that do not refuse two dtypes in one operation, as a new handle: call it before clones are made.
    ///
    /// In Burn 0.22.1 those are CubeCL devices without Burn's feature `fusion`. There a float tensor that a closure captures or makes in f32, and a layer
    /// that holds one, meet half precision without a panic: what comes out is garbage, and may train. Run [`check`](Self::check) on each new model, which
    /// compares the loss with that in f32. With fusion, Burn 0.22.1 refuses all but the product of an f16 matrix and an f32 one, which `check` finds.
    ///
    /// ```
    /// use burn_amp::MixedPrecision;
    ///
    /// let amp = MixedPrecision::f16().allow_unchecked_dtypes();
    /// # let _ = amp;
    /// ```
    pub fn allow_unchecked_dtypes(self) -> Self {
        Self::with_live(self.shared.dtype, self.live().detached(), true)
    }

    /// The dtype of tensors inside a scope.
    pub fn dtype(&self) -> FloatDType {
        self.shared.dtype
    }

    /// The present loss scale: that of the next scope; 1 without scaling. With a fused optimizer the device may be some steps ahead: scopes take the
    /// scale from there. In f32, scopes apply none.
    pub fn loss_scale(&self) -> f32 {
        self.shared.live.scale()
    }

    /// The regions of the network whose factors move ([`rescaled`](crate::rescaled) by a name), and what each multiplies gradients by
    /// now, beside the loss scale. By name; empty before the first of them is opened, or a record with some is loaded. Those of a record stay
    /// here and in later records, opened or not.
    pub fn regions(&self) -> Vec<(String, f32)> {
        let regions = self.live().regions.lock().states().into_iter();
        regions
            .map(|(name, region)| (name, region.schedule.scale()))
            .collect()
    }

    /// Checks that a device can compute in this dtype: WGSL has no bf16, and f16 on devices with `shader-f16`. And that Burn refuses two dtypes in one
    /// operation there, on which the messages of [`autocast`](Self::autocast) rest: a device of CubeCL's without fusion is asked, by a sum of two values, once in
    /// a process for each dtype. The server of a remote device is asked, once in a process, whether it knows burn-amp's operations. Does not wait for other
    /// devices.
    ///
    /// Call it before [`attach`](Self::attach) or [`prepare`](Self::prepare), which panic where this returns an error.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use burn_amp::MixedPrecision;
    ///
    /// MixedPrecision::f16().check_device(&Device::flex())?;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`], which names the device and the dtypes that it has. [`AmpError::UncheckedDTypes`] if it does not refuse two dtypes,
    /// unless [`allow_unchecked_dtypes`](Self::allow_unchecked_dtypes) was called. [`AmpError::RemoteServer`] if the server of a remote device lacks
    /// burn-amp's operations, or does not answer within half a minute.
    pub fn check_device(&self, device: &Device) -> Result<(), AmpError> {
        self.check_device_in(self.shared.dtype, device)
    }

    /// Checks a device as [`check_device`](Self::check_device), for another dtype.
    fn check_device_in(&self, dtype: FloatDType, device: &Device) -> Result<(), AmpError> {
        check_server(device)?;
        let half = DType::from(dtype);
        if !device.supports_dtype(half) {
            return Err(UnsupportedDType::new(device, half).into());
        }
        match self.shared.allows_unchecked || refuses_two_dtypes(device, dtype) {
            true => Ok(()),
            false => Err(AmpError::UncheckedDTypes {
                dtype: half,
                device: format!("{:?}", device.clone().inner()),
            }),
        }
    }

    /// Checks a device that a tensor comes from as [`check_device`](Self::check_device): once for each.
    pub(super) fn check_once(&self, device: Device) -> Result<(), AmpError> {
        if locked(&self.shared.devices).contains(&device) {
            return Ok(());
        }
        self.check_device(&device)?;
        locked(&self.shared.devices).push(device);
        Ok(())
    }

    /// Says whether a model was attached to it.
    pub(super) fn is_attached(&self) -> bool {
        self.shared.attached.load(Ordering::Relaxed)
    }

    /// Says whether a bare `autocast` opens scopes, in a `Learner`.
    pub(crate) fn is_in_learner(&self) -> bool {
        self.shared.in_learner.load(Ordering::Relaxed)
    }

    /// Says whether gradients are multiplied inside a scope: not in f32, not with a scaler that is turned off, and not in bf16 as long as its scale
    /// stays at 1.
    pub fn is_scaled(&self) -> bool {
        let is_idle = || self.dtype() == FloatDType::BF16 && self.live().is_idle();
        self.shared.enabled && self.shared.dtype != FloatDType::F32 && !is_idle()
    }

    /// Says whether optimizers test gradients, and skip steps: not in f32, and not with a scaler that is turned off.
    pub fn is_tested(&self) -> bool {
        self.shared.enabled
    }

    pub(crate) fn live(&self) -> &Arc<LiveScale> {
        &self.shared.live
    }

    /// The observer that follows the steps.
    pub(crate) fn observer(&self) -> Option<Arc<dyn Observer>> {
        let is_observed = self.live().is_observed.load(Ordering::Relaxed);
        is_observed.then(|| locked(&self.shared.observer).clone())?
    }
}

/// Checks all devices of a model as [`MixedPrecision::check_device`], for another dtype.
pub fn check_devices<M: Module>(
    amp: &MixedPrecision,
    dtype: FloatDType,
    model: &M,
) -> Result<(), AmpError> {
    let mut devices = model.devices().into_iter();
    devices.try_for_each(|device| amp.check_device_in(dtype, &device))
}

/// Makes a bare `autocast` open scopes on all threads, or no longer. Returns whether it did before.
pub fn set_running(amp: &MixedPrecision, is_running: bool) -> bool {
    amp.shared.in_learner.swap(is_running, Ordering::Relaxed)
}

/// Says that nothing has been computed in half precision so far, and that something should have been.
pub fn is_unused(amp: &MixedPrecision) -> bool {
    is_half(amp.dtype().into()) && amp.live().opened() == 0
}

/// The state of a run, which clones of the handle share: a value of one type alone.
///
/// # Panics
///
/// If another type is kept there.
pub fn state_of<T: Any + Default + Send + Sync>(amp: &MixedPrecision) -> &T {
    let state = amp.shared.extension.get_or_init(|| Box::new(T::default()));
    state.downcast_ref().expect("nothing else is kept there")
}

/// Attaches an observer to all clones of a handle, or none. Returns the one before.
pub fn set_observer(
    amp: &MixedPrecision,
    observer: Option<Arc<dyn Observer>>,
) -> Option<Arc<dyn Observer>> {
    let is_observed = &amp.live().is_observed;
    is_observed.store(observer.is_some(), Ordering::Relaxed);
    std::mem::replace(&mut *locked(&amp.shared.observer), observer)
}

/// Handles are equal if they are clones of one.
impl PartialEq for MixedPrecision {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Answers for metrics, a progress bar or other threads that ask for a training: what an optimizer of this
/// `MixedPrecision` did last, by hand or in a `Learner`.
///
/// With several optimizers, the counters are of all steps, and outcome and gradients those of the one that stepped last. Reading never waits for a device: all
/// values are host values that the step has read anyway, or, with a `Fused` optimizer, those of an earlier step that are
/// known.
///
/// ```
/// use burn::{
///     nn::LinearConfig, optim::{GradientsParams, SgdConfig},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::MixedPrecision;
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let (mut model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), SgdConfig::new().init());
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let loss = amp.autocast(input, |x| model.forward(x)).mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(0.1, model, grads);
///
/// std::thread::spawn(move || {
///     assert_eq!(amp.loss_scale(), 65536.0);
///     assert_eq!((amp.counters().steps(), amp.counters().skipped()), (1, 0));
///     assert!(amp.last_status().unwrap().norm() > 0.0);
/// })
/// .join()
/// .unwrap();
/// # let _ = model;
/// ```
impl MixedPrecision {
    /// Steps taken and skipped so far, by all optimizers together. Clones of an optimizer count as one: the clone that stepped last. Counts in
    /// a row are those of the optimizer that stepped last.
    pub fn counters(&self) -> StepCounters {
        self.live().journal(Journal::counters)
    }

    /// The outcome of the last step; none before the first. See [`Scaler::last_outcome`](crate::Scaler::last_outcome).
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.live().journal(|journal| journal.last.outcome)
    }

    /// The measures of the last step's gradients, before clipping; none before the first step, after a micro-batch that is tested with its window, and
    /// of a disabled scaler that does not clip. See [`Scaler::last_status`](crate::Scaler::last_status).
    pub fn last_status(&self) -> Option<GradientStatus> {
        let status = self.live().journal(|journal| journal.last.status.clone());
        status.map(|status| GradientStatus::clone(&status))
    }
}

impl std::fmt::Debug for MixedPrecision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MixedPrecision")
            .field("dtype", &self.shared.dtype)
            .field("loss_scale", &f64::from(self.loss_scale()))
            .field("regions", &self.regions())
            .finish()
    }
}
