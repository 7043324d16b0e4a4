//! Where half precision begins and ends on a thread: scopes, islands in f32, parts with a scale of their own, and the casts between them.
//!
//! ```
//! use burn::{module::Module, nn::{LayerNormConfig, LinearConfig}, tensor::{DType, Device, Tensor}};
//! use burn_amp::{MixedPrecision, in_f32};
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let linear = LinearConfig::new(4, 4).init(&device).apply_reparameterization(amp.clone());
//! let norm = LayerNormConfig::new(4).init(&device).apply_reparameterization(amp.clone());
//!
//! let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
//!     let x = linear.forward(x);
//!     assert_eq!(x.dtype(), DType::F16);
//!     in_f32(x, |x| norm.forward(x)) // f32 inside, f16 again outside
//! });
//! assert_eq!(output.dtype(), DType::F32);
//! ```

use burn::tensor::{DType, FloatDType, Tensor};
use burn_amp_kernels::{Watch, panic_message};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
};

use crate::{
    cast::{Cast, CastFloat, DryRun, Open, Side, Told, Way},
    dtype::is_half,
    error::AmpError,
    live_scale::{Place, Region},
    mixed_precision::MixedPrecision,
    rescale::{Rescale, Rule},
};

thread_local! {
    /// What this thread is in, the innermost last.
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// How the scopes of a dry run differ from those of a step.
    static DRY_RUN: RefCell<Option<DryRun>> = const { RefCell::new(None) };
    /// The error with which a scope of this thread panicked last.
    static REFUSED: RefCell<Option<AmpError>> = const { RefCell::new(None) };
}

/// A dry run on this thread, whose scopes differ from those of a step. A bare [`autocast`] opens scopes of `amp`.
pub(crate) struct Checking {
    outer: Option<DryRun>,
    _model: Leave,
}

impl Checking {
    pub(crate) fn new(amp: &MixedPrecision, dry: DryRun) -> Self {
        REFUSED.set(None);
        Self {
            outer: DRY_RUN.replace(Some(dry)),
            _model: Leave::after(Frame::Model(amp.clone())),
        }
    }

    /// What a scope has refused since.
    pub(crate) fn error(&self) -> Option<AmpError> {
        REFUSED.take()
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        DRY_RUN.set(self.outer.take());
    }
}

#[derive(Clone)]
enum Frame {
    /// A scope of `autocast`.
    Half(Arc<Open>),
    /// A part in f32 of a scope: parameters are plain there.
    Full,
    /// A part with a scale of its own, in f32: it is that of the scopes inside.
    Rescaled(Rescale),
    /// A model that a `Learner` trains: whose scopes a bare `autocast` opens.
    Model(MixedPrecision),
}

/// A scope of half precision, to be entered on another thread.
///
/// Each thread has its own: work that [`autocast`](MixedPrecision::autocast) hands to other threads reads parameters in f32
/// unless it enters the scope there.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, Tensor}};
/// use burn_amp::{MixedPrecision, Scope};
///
/// let device = Device::flex();
/// let amp = MixedPrecision::f16();
/// let linear = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
/// let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
///     let scope = Scope::current();
///     std::thread::scope(|threads| {
///         threads.spawn(|| scope.enter(|| linear.forward(x))).join().unwrap()
///     })
/// });
/// assert_eq!(output.dtype(), DType::F32);
/// ```
#[derive(Clone)]
pub struct Scope {
    frames: Vec<Frame>,
}

impl Scope {
    /// What the calling thread is in: a scope, a part of one [`in_f32`] or [`rescaled`], or nothing of these.
    pub fn current() -> Self {
        Self {
            frames: FRAMES.with_borrow(Clone::clone),
        }
    }

    /// Runs `work` on the calling thread as if it were where [`current`](Self::current) was called.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let outer = FRAMES.with_borrow_mut(|frames| std::mem::replace(frames, self.frames.clone()));
        let _guard = Restore(Some(outer));
        work()
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = match self.frames.last() {
            Some(Frame::Half(open)) => Some(&open.side),
            _ => None,
        };
        f.debug_struct("Scope").field("side", &side).finish()
    }
}

/// Puts the frames back, on a panic too.
struct Restore(Option<Vec<Frame>>);

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(frames) = self.0.take() {
            FRAMES.set(frames);
        }
    }
}

/// Closes what was entered, on a panic too.
struct Leave;

impl Leave {
    fn after(frame: Frame) -> Self {
        FRAMES.with_borrow_mut(|frames| frames.push(frame));
        Self
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| frames.pop());
    }
}

/// The factor between two sides, and its inverse, must be normal in f32, or gradients lose digits.
const LARGEST: f64 = f64::from_bits((1023 + 126) << 52); // 2^126

impl Open {
    /// A part of this with a factor of its own.
    fn part(&self, rescale: Rescale, told: Arc<Told>) -> Self {
        let mut region = self.region.clone();
        let mut factor = match &rescale.0 {
            Rule::Fixed(k) => f64::from(*k).exp2(),
            Rule::Driven(driven) if self.amp.is_scaled() => {
                let factor = self.amp.live().enter_part(driven, self.dry.is_some());
                region = Some(Arc::new(Region {
                    part: driven.name.clone(),
                    factor: factor.into(),
                    around: self.shift,
                }));
                factor.into()
            }
            Rule::Driven(_) => 1.0,
        };
        if let Some(dry) = &self.dry {
            dry.has_parts.store(true, Ordering::Relaxed);
            factor *= dry.parts;
        }
        let limited = |value: f64| value.clamp(1.0 / LARGEST, LARGEST);
        let dtype = self.side.dtype;
        let scale = match dtype {
            FloatDType::F32 => self.side.scale,
            _ => limited(self.side.scale * limited(factor)),
        };
        Self {
            amp: self.amp.clone(),
            side: Side {
                dtype,
                scale,
                ahead: self.side.ahead.clone(),
            },
            number: self.number,
            rescale: Some(rescale),
            region,
            shift: self.shift * factor,
            dry: self.dry.clone(),
            told,
        }
    }

    /// Whether gradients are to be measured where they enter and leave this part.
    fn is_measured(&self) -> bool {
        matches!(&self.rescale, Some(Rescale(Rule::Driven(_))))
            && self.amp.is_scaled()
            && self.dry.is_none()
    }

    /// Looks at the output too: an overflow in the forward pass is no fault of a scale.
    fn watch_scope(&self) -> Watch {
        let (amp, place) = (
            self.amp.clone(),
            Place::Scope(self.number, self.region.clone()),
        );
        Watch::new(move |crossing| amp.live().crossed(place.clone(), crossing))
    }

    fn watch(&self, place: Place) -> Watch {
        let amp = self.amp.clone();
        Watch::of_gradient(move |crossing| amp.live().crossed(place.clone(), crossing))
    }

    /// What a panic inside was about, if it is a clash of dtypes or follows from what was refused; others go on.
    fn explain<R>(&self, panic: Box<dyn Any + Send>) -> Result<R, AmpError> {
        if let Some(refused) = self.take_refused() {
            return Err(refused);
        }
        let message = panic_message(&*panic);
        // A scope inside this one has said already what is wrong.
        if let Some(error) = REFUSED.take().filter(|error| error.to_string() == message) {
            return Err(error);
        }
        if !is_dtype_clash(message) {
            resume_unwind(panic);
        }
        let last = (self.told.last_read)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Err(AmpError::DTypeClash {
            dtype: self.side.dtype.into(),
            parameter: last.as_deref().map(str::to_string),
            message: message.to_string(),
        })
    }
}

/// The scope whose half precision the thread is in; none in an island, or outside.
fn innermost() -> Option<Arc<Open>> {
    FRAMES.with_borrow(|frames| innermost_of(frames).cloned())
}

fn innermost_of(frames: &[Frame]) -> Option<&Arc<Open>> {
    match frames.last() {
        Some(Frame::Half(open)) => Some(open),
        _ => None,
    }
}

impl MixedPrecision {
    /// Runs a model in half precision: casts the float tensors of `input` on the way in, and those of the result back to f32.
    ///
    /// Inside, parameters of models with this `MixedPrecision` appear in half precision. Gradients are multiplied by the loss
    /// scale where they are in half precision, and nowhere else: those of the input and of the parameters come out in f32
    /// and unscaled. So the loss, `backward` and all that comes after are as in f32. Take the loss outside.
    ///
    /// Scopes may be nested; what comes in from an outer scope goes back to it, in its dtype. A scope is of its thread:
    /// see [`Scope`]. It closes when `forward` panics. Does not wait for the device.
    ///
    /// ```
    /// use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, Tensor}};
    /// use burn_amp::MixedPrecision;
    ///
    /// let device = Device::flex();
    /// let amp = MixedPrecision::f16();
    /// let model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
    /// let logits = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| model.forward(x));
    /// assert_eq!(logits.dtype(), DType::F32);
    /// ```
    ///
    /// # Panics
    ///
    /// Where [`try_autocast`](Self::try_autocast) returns an error, with its message, and where `forward` does.
    #[track_caller]
    pub fn autocast<I: CastFloat, R: CastFloat>(
        &self,
        input: I,
        forward: impl FnOnce(I) -> R,
    ) -> R {
        self.try_autocast(input, forward).unwrap_or_else(|error| {
            REFUSED.set(Some(error.clone()));
            panic!("{error}")
        })
    }

    /// As [`autocast`](Self::autocast), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::HalfPrecisionInput`] if a half-precision tensor that requires gradients comes in from outside,
    /// [`AmpError::HalfPrecisionLeaf`] if such a parameter is read, [`AmpError::CapturedOutput`] if an f32 tensor that
    /// requires gradients is returned, [`AmpError::DTypeClash`] if Burn panics because of two dtypes inside.
    pub fn try_autocast<I: CastFloat, R: CastFloat>(
        &self,
        input: I,
        forward: impl FnOnce(I) -> R,
    ) -> Result<R, AmpError> {
        let outer = innermost();
        let open = Arc::new(self.opened());
        let entry = Cast(Way::Enter {
            outer: outer.as_ref().map(|outer| outer.side.clone()),
            open: &open,
            nested: Cell::new(false),
            watch: None,
        });
        let input = input.cast_float(&entry);
        // A thread pool may put other work on a thread that waits inside a scope. Its tensors are not of that scope.
        let nested = match &entry.0 {
            Way::Enter { nested, .. } => outer.filter(|_| nested.get()),
            _ => None,
        };
        let inside = FRAMES.with_borrow(|frames| {
            let half = |frame: &Frame| matches!(frame, Frame::Half(_));
            frames.iter().any(half) && (nested.is_some() || innermost_of(frames).is_none())
        });
        let result = {
            let _guard = Leave::after(Frame::Half(open.clone()));
            catch_unwind(AssertUnwindSafe(|| forward(input)))
        };
        let output = result.or_else(|panic| open.explain(panic))?;
        let output = output.cast_float(&Cast(Way::Exit {
            open: &open,
            to: nested.map_or(Side::OUTSIDE, |outer| outer.side.clone()),
            watch: (self.is_scaled() && !inside && open.dry.is_none()).then(|| open.watch_scope()),
        }));
        match open.take_refused() {
            None => Ok(output),
            Some(error) => Err(error),
        }
    }

    /// Casts the float tensors of a value to half precision, as [`autocast`](Self::autocast) does with its input: for
    /// tensors that a model captures or makes itself.
    ///
    /// Inside a scope, the gradient that comes back is that of the value, unscaled; what is in half precision already stays
    /// as it is. Outside, a cast. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// At the end of the scope, as [`autocast`](Self::autocast), for a half-precision tensor of another dtype that requires
    /// gradients.
    pub fn cast<T: CastFloat>(&self, value: T) -> T {
        match innermost() {
            Some(open) => value.cast_float(&Cast(Way::Into(&open))),
            None => value.cast_float(&Cast(Way::Plain(self.dtype()))),
        }
    }

    /// A scope of this thread, in the parts that it is in.
    fn opened(&self) -> Open {
        let dry = DRY_RUN.with_borrow(Clone::clone);
        let dtype = dry.as_ref().and_then(|dry| dry.dtype);
        let dtype = dtype.unwrap_or(self.dtype());
        let ahead = (dry.is_none() && self.is_scaled()).then(|| self.live().ahead());
        let ahead = ahead.flatten();
        let mut open = Open {
            amp: self.clone(),
            side: Side {
                dtype,
                scale: match &dry {
                    Some(dry) if dry.dtype.is_some() || dtype != FloatDType::F32 => dry.scale,
                    _ if ahead.is_some() => 1.0,
                    _ => self.factor(),
                },
                ahead,
            },
            number: self.live().open(),
            rescale: None,
            region: None,
            shift: 1.0,
            dry,
            told: Arc::default(),
        };
        let rescales: Vec<_> = FRAMES.with_borrow(|frames| {
            let rescale = |frame: &Frame| match frame {
                Frame::Half(open) => open.rescale.clone(),
                Frame::Rescaled(rescale) => Some(rescale.clone()),
                _ => None,
            };
            frames.iter().filter_map(rescale).collect()
        });
        for rescale in rescales {
            open = open.part(rescale, Arc::default());
        }
        // The frames of those parts are still there for scopes inside.
        open.rescale = None;
        open
    }

    /// Runs a model with this as what a bare [`autocast`] opens scopes of.
    #[cfg(feature = "train")]
    pub(crate) fn in_model<R>(&self, work: impl FnOnce() -> R) -> R {
        let _guard = Leave::after(Frame::Model(self.clone()));
        work()
    }

    /// The value of a parameter where it is read.
    pub(crate) fn read<const D: usize>(&self, path: &Arc<str>, base: Tensor<D>) -> Tensor<D> {
        let Some(open) = innermost().filter(|open| open.amp.is(self)) else {
            return base;
        };
        let dtype = base.dtype();
        // Of Flex32 nobody knows how many digits a device keeps.
        if (is_half(dtype) || dtype == DType::Flex32) && base.is_tracked() {
            open.refuse(AmpError::HalfPrecisionLeaf {
                parameter: path.to_string(),
                dtype,
            });
        }
        *(open.told.last_read)
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        match &open.dry {
            None => self.live().read_in(open.region.as_ref(), path),
            Some(dry) => {
                if let Some(notes) = &dry.notes {
                    notes.read(path);
                }
            }
        }
        open.cross(&Side::OUTSIDE, &open.side, base)
    }
}

/// What the thread's scopes differ by, in a dry run.
pub(crate) fn dry_run() -> Option<DryRun> {
    DRY_RUN.with_borrow(Clone::clone)
}

/// What gradients are multiplied by where the thread is.
pub(crate) fn scale_here() -> f64 {
    innermost().map_or(1.0, |open| open.side.scale)
}

/// That of the scope around, or of the model that a `Learner` trains.
pub(crate) fn current() -> Option<MixedPrecision> {
    FRAMES.with_borrow(|frames| {
        frames.iter().rev().find_map(|frame| match frame {
            Frame::Half(open) => Some(open.amp.clone()),
            Frame::Model(amp) => Some(amp.clone()),
            Frame::Full | Frame::Rescaled(_) => None,
        })
    })
}

/// As Flex, Burn's tensors and CubeCL word it.
pub(crate) fn is_dtype_clash(message: &str) -> bool {
    let message = message.to_lowercase();
    message.contains("dtype") || message.contains("f16") || message.contains("data type")
}

/// Runs a part of a model in half precision, if a `Learner` trains the model with a [`MixedPrecision`], or a scope is open: it is
/// [`MixedPrecision::autocast`] of that one.
///
/// Elsewhere it runs the part in f32, so that the model stays a plain f32 model without a `MixedPrecision`. Does not wait
/// for the device.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device, Tensor}};
/// use burn_amp::autocast;
///
/// let device = Device::flex();
/// let linear = LinearConfig::new(4, 2).init(&device);
/// let output = autocast(Tensor::<2>::ones([1, 4], &device), |x| linear.forward(x));
/// assert_eq!(output.dtype(), DType::F32);
/// ```
///
/// # Panics
///
/// As [`MixedPrecision::autocast`].
#[track_caller]
pub fn autocast<I: CastFloat, R: CastFloat>(input: I, forward: impl FnOnce(I) -> R) -> R {
    match current() {
        Some(amp) => amp.autocast(input, forward),
        None => forward(input),
    }
}

/// Runs one part of a half-precision model in f32: a norm, a recurrent layer, a softmax.
///
/// Takes and returns tensors, tuples and structures of them (states of an LSTM). Half-precision tensors are widened on the
/// way in and cast back on the way out; f32 and f64 tensors stay on the way in. Inside, parameters and captured tensors are
/// plain f32, and gradients are unscaled. Outside a scope, an f32 input stays f32 on the way out too.
///
/// Layers of Burn that hold f32 tensors of their own need it, because Burn refuses to combine them with f16: BatchNorm, Lstm,
/// Gru and other recurrent ones, positional encodings. Does not wait for the device.
///
/// ```
/// use burn::{module::Module, nn::{BatchNormConfig, conv::Conv2dConfig}, tensor::{Device, Tensor}};
/// use burn_amp::{MixedPrecision, in_f32};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let conv = Conv2dConfig::new([1, 2], [3, 3]).init(&device).apply_reparameterization(amp.clone());
/// let norm = BatchNormConfig::new(2).init(&device).apply_reparameterization(amp.clone());
///
/// let output = amp.autocast(Tensor::<4>::ones([1, 1, 8, 8], &device), |x| {
///     in_f32(conv.forward(x), |x| norm.forward(x))
/// });
/// # let _ = output;
/// ```
pub fn in_f32<I: CastFloat, R: CastFloat>(input: I, part: impl FnOnce(I) -> R) -> R {
    let Some(open) = innermost() else {
        let widen = Cast(Way::Widen(Cell::new(None)));
        let output = part(input.cast_float(&widen));
        return match widen.0 {
            Way::Widen(seen) if seen.get().is_some() => {
                let dtype = seen.get().unwrap_or(FloatDType::F32);
                output.cast_float(&Cast(Way::Plain(dtype)))
            }
            _ => output,
        };
    };
    let input = input.cast_float(&Cast(Way::OutOf(&open)));
    let output = {
        let _guard = Leave::after(Frame::Full);
        part(input)
    };
    output.cast_float(&Cast(Way::Into(&open)))
}

/// Runs a part of a half-precision model with a scale of its own: multiplies gradients by 2^k in the part, beside the loss scale, and takes that
/// back on the way out.
///
/// For networks whose gradients span more than half precision holds, so that no loss scale serves all layers. `by` is a number k, or
/// a [`Rescale`] with a name, whose factor moves by itself. Takes and returns what [`in_f32`] does. The forward pass is unchanged.
/// Gradients of parameters and of captured f32 tensors come out unscaled, those of the input as they would without the part. Half-precision tensors that come from
/// outside the part go through `input`: one that the closure captures keeps the factor in its gradient, which [`MixedPrecision::check`] finds.
///
/// Parts may be nested in parts, in `in_f32` and in scopes; their factors are multiplied. In f32, inside `in_f32` and outside of scopes, nothing is
/// multiplied, but scopes that open inside have the factor. The product with the loss scale stays between 2^-126 and 2^126.
///
/// Between two parts, gradients are in half precision with the factors of what is around both. So where a gradient shrinks from layer to layer, put
/// the early layers into a part of a part, not beside it; or let f32 lie between them, by a scope in each part.
///
/// Does not wait for the device. A part with a name costs one pass over the gradient, and none over the memory of others, at each of its two ends. An overflow in it
/// skips the step, and lowers its factor in place of the loss scale.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::{Device, Tensor}};
/// use burn_amp::{MixedPrecision, rescaled};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let trunk = LinearConfig::new(4, 4).init(&device).apply_reparameterization(amp.clone());
/// let head = LinearConfig::new(4, 1).init(&device).apply_reparameterization(amp.clone());
///
/// let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
///     let hidden = rescaled(10, x, |x| trunk.forward(x)); // gradients times 2^10 in the trunk
///     head.forward(hidden)
/// });
/// # let _ = output;
/// ```
pub fn rescaled<I: CastFloat, R: CastFloat>(
    by: impl Into<Rescale>,
    input: I,
    part: impl FnOnce(I) -> R,
) -> R {
    let rescale = by.into();
    let Some(outer) = innermost() else {
        let _guard = Leave::after(Frame::Rescaled(rescale));
        return part(input);
    };
    let open = Arc::new(outer.part(rescale, outer.told.clone()));
    let region = open.region.clone().filter(|_| open.is_measured());
    let watch = |place: fn(Arc<Region>, Option<Arc<Region>>) -> Place| {
        let region = region.clone()?;
        Some(open.watch(place(region, outer.region.clone())))
    };
    let input = input.cast_float(&Cast(Way::Enter {
        outer: Some(outer.side.clone()),
        open: &open,
        nested: Cell::new(false),
        watch: watch(Place::Departure),
    }));
    let output = {
        let _guard = Leave::after(Frame::Half(open.clone()));
        part(input)
    };
    output.cast_float(&Cast(Way::Exit {
        open: &open,
        to: outer.side.clone(),
        watch: watch(Place::Arrival),
    }))
}
