//! Where half precision begins and ends on a thread: scopes, islands in f32, and the casts between them.
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
use burn_amp_kernels::{Watch, scaled_cast};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    cast::{Cast, CastFloat, Open, Side, Way},
    dtype::is_half,
    error::AmpError,
    mixed_precision::MixedPrecision,
};

thread_local! {
    /// What this thread is in, the innermost last.
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// The scale of a dry run, in place of that of the scopes' own.
    static DRY_RUN: Cell<Option<f64>> = const { Cell::new(None) };
    /// The error with which a scope of this thread panicked last.
    static REFUSED: RefCell<Option<AmpError>> = const { RefCell::new(None) };
}

/// A dry run on this thread, with another scale at the border.
pub(crate) struct Checking {
    outer: Option<f64>,
}

impl Checking {
    pub(crate) fn at(scale: f64) -> Self {
        REFUSED.set(None);
        Self {
            outer: DRY_RUN.replace(Some(scale)),
        }
    }

    /// What a scope has refused since.
    pub(crate) fn error(&self) -> Option<AmpError> {
        REFUSED.take()
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        DRY_RUN.set(self.outer);
    }
}

#[derive(Clone)]
enum Frame {
    /// A scope of `autocast`.
    Half(Arc<Open>),
    /// A part in f32 of a scope: parameters are plain there.
    Full,
    /// A model that a `Learner` trains: whose scopes a bare `autocast` opens.
    #[cfg_attr(not(feature = "train"), expect(dead_code))]
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
    /// What the calling thread is in: a scope, a part of one [`in_f32`], or neither.
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
            Some(Frame::Half(open)) => Some(open.side),
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

impl Open {
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
        let last = self
            .last_read
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
        let open = Arc::new(Open {
            amp: self.clone(),
            side: Side {
                dtype: self.dtype(),
                scale: match DRY_RUN.get() {
                    Some(scale) if self.dtype() != FloatDType::F32 => scale,
                    _ => self.factor(),
                },
            },
            number: self.live().open(),
            refused: Mutex::default(),
            last_read: Mutex::default(),
        });
        let entry = Cast(Way::Enter {
            outer: outer.as_ref().map(|outer| outer.side),
            open: &open,
            nested: Cell::new(false),
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
            to: nested.map_or(Side::OUTSIDE, |outer| outer.side),
            watch: (self.is_scaled() && !inside).then(|| self.watch(open.number)),
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

    fn watch(&self, number: u64) -> Watch {
        let amp = self.clone();
        Watch::new(move |crossing| amp.live().crossed(number, crossing))
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
        *open
            .last_read
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        scaled_cast(base, open.side.dtype, 1.0 / open.side.scale)
    }
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
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
    let amp = FRAMES.with_borrow(|frames| {
        frames.iter().rev().find_map(|frame| match frame {
            Frame::Half(open) => Some(open.amp.clone()),
            Frame::Model(amp) => Some(amp.clone()),
            Frame::Full => None,
        })
    });
    match amp {
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
    let input = input.cast_float(&Cast(Way::OutOf(open.side)));
    let output = {
        let _guard = Leave::after(Frame::Full);
        part(input)
    };
    output.cast_float(&Cast(Way::Into(&open)))
}
