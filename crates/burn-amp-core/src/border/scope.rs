//! Where half precision begins and ends on a thread: scopes, islands in f32, regions with a scale of their own, and the casts between them.
//!
//! ```
//! use burn::{nn::{LayerNormConfig, LinearConfig}, tensor::{DType, Device, Tensor}};
//! use burn_amp::{MixedPrecision, in_f32};
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let linear = amp.attach(LinearConfig::new(4, 4).init(&device));
//! let norm = amp.attach(LayerNormConfig::new(4).init(&device));
//!
//! let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
//!     let x = linear.forward(x);
//!     assert_eq!(x.dtype(), DType::F16);
//!     in_f32(x, |x| norm.forward(x)) // f32 inside, f16 again outside
//! });
//! assert_eq!(output.dtype(), DType::F32);
//! ```

use burn::module::ParamId;
use burn::tensor::{DType, FloatDType};
use burn_amp_kernels::{Watch, panic_message};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Once};

use crate::border::cast::{CastFloat, cast_each};
use crate::border::mixed_precision::{MixedPrecision, half_exists};
use crate::border::open::{Open, Side};
use crate::scale::rescale::{RegionFactor, Rescale};
use crate::values::{AnyTensor, is_half};
use crate::{
    border::dry_run::DryRun,
    error::{AmpError, or_panic},
    lock::locked,
    scale::border_events::EventPlace,
};

thread_local! {
    /// What this thread is in.
    static HERE: RefCell<Frame> = RefCell::default();
    /// The error with which a scope of this thread panicked last.
    static REFUSED: RefCell<Option<AmpError>> = const { RefCell::new(None) };
}

/// What a thread is in: what it has entered last, and what holds of all that encloses it.
#[derive(Clone, Default)]
struct Frame {
    /// The half precision that it is in; none in f32, where parameters are plain.
    open: Option<Arc<Open>>,
    /// Whether a scope is open, in an island of f32 too.
    is_inside: bool,
    /// What the regions that it is in multiply gradients by; in f32, in the scopes inside.
    rescales: Vec<Rescale>,
    /// Whose scopes a bare `autocast` opens.
    amp: Option<MixedPrecision>,
    /// How the scopes in it differ from those of a step.
    dry: Option<Arc<DryRun>>,
}

impl Frame {
    fn here() -> Self {
        HERE.with_borrow(Clone::clone)
    }

    /// Runs a part of the forward pass in it. It is left on a panic too.
    fn run<R>(self, forward: impl FnOnce() -> R) -> R {
        struct Leave(Frame);

        impl Drop for Leave {
            fn drop(&mut self) {
                HERE.set(std::mem::take(&mut self.0));
            }
        }

        let _leave = Leave(HERE.replace(self));
        forward()
    }
}

/// Runs a forward pass whose scopes differ from those of a step, and gives back what a scope in it has refused. A bare [`autocast`] opens
/// scopes of `amp`, if it does so in the training.
pub(crate) fn in_dry_run<R>(
    amp: &MixedPrecision,
    dry: &Arc<DryRun>,
    forward: impl FnOnce() -> R,
) -> (R, Option<AmpError>) {
    REFUSED.set(None);
    let here = Frame::here();
    let frame = Frame {
        open: None,
        amp: dry.in_learner.then(|| amp.clone()).or(here.amp),
        dry: Some(dry.clone()),
        ..here
    };
    let result = frame.run(forward);
    (result, REFUSED.take())
}

/// A scope of half precision, to be entered on another thread.
///
/// Each thread has its own: work that [`autocast`](MixedPrecision::autocast) hands to other threads reads parameters in f32
/// unless it enters the scope there.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device, Tensor}};
/// use burn_amp::{MixedPrecision, Scope};
///
/// let device = Device::flex();
/// let amp = MixedPrecision::f16();
/// let linear = amp.attach(LinearConfig::new(4, 2).init(&device));
/// let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
///     let scope = Scope::current();
///     std::thread::scope(|threads| {
///         threads.spawn(|| scope.enter(|| linear.forward(x))).join().unwrap()
///     })
/// });
/// assert_eq!(output.dtype(), DType::F32);
/// ```
#[derive(Clone)]
pub struct Scope(Frame);

impl Scope {
    /// What the calling thread is in: a scope, a region of one ([`in_f32`] or [`rescaled`]), or none of these.
    pub fn current() -> Self {
        Self(Frame::here())
    }

    /// Runs `work` on the calling thread as if it were where [`current`](Self::current) was called.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.clone().run(work)
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = self.0.open.as_ref().map(|open| &open.side);
        f.debug_struct("Scope").field("side", &side).finish()
    }
}

/// What a panic inside was about, if it is a clash of dtypes or follows from what was refused; others go on.
fn explain(amp: &MixedPrecision, open: &Open, panic: Box<dyn Any + Send>) -> AmpError {
    if let Some(refused) = open.take_refused() {
        return refused;
    }
    // A scope inside this one has said already what is wrong.
    let message = panic_message(&*panic);
    if let Some(error) = REFUSED.take().filter(|error| error.to_string() == message) {
        return error;
    }
    let elsewhere = amp.take_read_elsewhere();
    if let Some(path) = elsewhere.filter(|_| OF_THREADS.iter().any(|said| message.contains(said))) {
        return AmpError::OtherThread {
            parameter: path.to_string(),
            dtype: open.side.dtype.into(),
        };
    }
    let last = locked(&open.notes).last_read.clone();
    dtype_clash(panic, open.side.dtype.into(), last, amp.is_attached())
}

/// A panic of Burn's because of two dtypes; others go on.
pub(crate) fn dtype_clash(
    panic: Box<dyn Any + Send>,
    dtype: DType,
    parameter: Option<Arc<str>>,
    attached: bool,
) -> AmpError {
    let message = panic_message(&*panic).to_string();
    if !CLASHES.iter().any(|clash| message.contains(clash)) {
        resume_unwind(panic);
    }
    AmpError::DTypeClash {
        dtype,
        parameter: parameter.map(|path| path.to_string()),
        attached,
        message,
    }
}

/// What Burn 0.22.1 says when two dtypes meet: its Flex backend (an operation on two tensors, a layer norm), its fusion, its
/// ndarray backend, and an einsum.
const CLASHES: [&str; 6] = [
    "dtype mismatch",
    "does not match input dtype",
    "DTypeMismatch",
    "Data type mismatch",
    "data type mismatch",
    "must have the same dtype",
];

/// What a thread's panic is where another one has joined it: what it said is lost.
const OF_THREADS: [&str; 2] = ["Any { .. }", "a scoped thread panicked"];

/// The scope whose half precision the thread is in; none in an island, or outside.
fn innermost() -> Option<Arc<Open>> {
    HERE.with_borrow(|here| here.open.clone())
}

impl MixedPrecision {
    /// Runs a model in half precision: casts the float tensors of `input` on the way in, and those of the result back to f32.
    ///
    /// Inside, parameters of models with this `MixedPrecision` appear in half precision. Gradients are multiplied by the loss
    /// scale where they are in half precision, and nowhere else: those of the input and of the parameters come out in f32
    /// and unscaled. So the loss, `backward` and all that comes after are as in f32. Take the loss outside.
    ///
    /// Scopes may be nested; what comes in from an outer scope goes back to it, in its dtype. A scope belongs to its thread:
    /// see [`Scope`]. It closes when `forward` panics. Does not wait for the device.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{DType, Device, Tensor}};
    /// use burn_amp::MixedPrecision;
    ///
    /// let device = Device::flex();
    /// let amp = MixedPrecision::f16();
    /// let model = amp.attach(LinearConfig::new(4, 2).init(&device));
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
        let result = self.try_autocast(input, forward);
        if let Err(error) = &result {
            REFUSED.set(Some(error.clone()));
        }
        or_panic(result)
    }

    /// As [`autocast`](Self::autocast), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::HalfPrecisionInput`] if a half-precision tensor that requires gradients comes in from outside,
    /// [`AmpError::HalfPrecisionLeaf`] if such a parameter is read, [`AmpError::CapturedOutput`] if an f32 tensor that
    /// requires gradients is returned, [`AmpError::NotAttached`] if what is returned requires gradients although nothing that does has come in,
    /// [`AmpError::DTypeClash`] if Burn panics because of two dtypes inside, [`AmpError::OtherThread`] if a thread that `forward` waits for panics, and
    /// parameters were read there,
    /// [`AmpError::UnsupportedDType`] and [`AmpError::UncheckedDTypes`] as [`check_device`](Self::check_device),
    /// [`AmpError::BackwardInside`] if `forward` itself calls `backward` and the loss scale is not 1. [`AmpError::InvalidValue`] for a
    /// [`rescaled`] region whose power of two is outside -126 to 126.
    pub fn try_autocast<I: CastFloat, R: CastFloat>(
        &self,
        input: I,
        forward: impl FnOnce(I) -> R,
    ) -> Result<R, AmpError> {
        let here = Frame::here();
        let outer = here.open.as_ref().map(|open| open.side.clone());
        let open = Arc::new(self.opened(&here));
        let nested = Cell::new(false);
        let outside = outer.as_ref().unwrap_or(&Side::OUTSIDE);
        let input = cast_each(input, |tensor| {
            nested.set(nested.get() || outside.holds(tensor.dtype()));
            open.take_from(outside, tensor, None)
        });
        // A thread pool may put other work on a thread that waits inside a scope. Its tensors are not of that scope.
        let outer = outer.filter(|_| nested.get());
        let enclosing = here.open.clone().filter(|_| outer.is_some());
        locked(&open.notes).outer = enclosing.as_ref().map(|open| open.notes.clone());
        let is_inside = here.is_inside && (outer.is_some() || here.open.is_none());
        // Inside half precision that has a scale, what is around this sees what comes.
        let is_seen = here.is_inside && outer.is_some();
        let frame = Frame {
            open: Some(open.clone()),
            is_inside: is_inside || self.is_scaled(),
            amp: Some(self.clone()),
            ..here
        };
        let forward = || catch_unwind(AssertUnwindSafe(|| forward(input)));
        let result = self.run(|| frame.run(forward));
        let mut notes = locked(&open.notes);
        notes.is_closed = true;
        if let Some(path) = notes.last_read.clone().filter(|_| open.dry.is_none()) {
            self.live().note_read(path);
        }
        drop(notes);
        let output = result.map_err(|panic| explain(self, &open, panic))?;
        let is_watched = self.is_scaled() && !is_seen && open.dry.is_none();
        let watch = is_watched.then(|| open.watch_scope());
        let outside = outer.as_ref().unwrap_or(&Side::OUTSIDE);
        let output = cast_each(output, |tensor| {
            let tensor = open.let_out(tensor, outside, watch.as_ref());
            match (&enclosing, &open.dry) {
                (Some(enclosing), _) => enclosing.note(&tensor),
                (None, Some(dry)) => dry.keep(None, &tensor),
                _ => {}
            }
            tensor
        });
        open.take_refused().map_or(Ok(output), Err)
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
            Some(open) => cast_each(value, |tensor| open.take(tensor)),
            None => cast_each(value, |tensor| tensor.cast(self.dtype())),
        }
    }

    /// A scope of this thread, in the regions that it is in.
    fn opened(&self, here: &Frame) -> Open {
        let dry = here.dry.clone();
        let other = dry.as_ref().and_then(|dry| dry.dtype_of(self));
        let dtype = other.unwrap_or(self.dtype());
        let is_step = dry.is_none() && self.is_scaled();
        let device_step = is_step
            .then(|| self.live().in_flight.device_step())
            .flatten();
        if is_step {
            self.live().events.follow_the_last();
        }
        let scale = match &dry {
            Some(dry) if other.is_some() || dtype != FloatDType::F32 => dry.scale,
            _ if device_step.is_some() => 1.0,
            _ => self.factor(),
        };
        let open = Open {
            amp: self.clone(),
            side: Side {
                dtype,
                scale,
                device_step,
            },
            number: self.live().open(),
            region: None,
            shift: 1.0,
            dry,
            notes: Arc::default(),
        };
        (here.rescales.iter()).fold(open, |open, rescale| open.rescaled(rescale))
    }

    /// Runs a model with this as what a bare [`autocast`] opens scopes of.
    #[doc(hidden)]
    pub fn in_model<R>(&self, work: impl FnOnce() -> R) -> R {
        let frame = Frame {
            open: None,
            amp: Some(self.clone()),
            ..Frame::here()
        };
        frame.run(work)
    }

    /// The value of a parameter where it is read.
    pub(crate) fn read(&self, path: &Arc<str>, id: ParamId, base: AnyTensor) -> AnyTensor {
        let Some(open) = innermost().filter(|open| open.amp.is(self)) else {
            if HERE.with_borrow(|here| !here.is_inside) {
                self.note_read_elsewhere(path);
            }
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
        locked(&open.notes).last_read = Some(path.clone());
        match &open.dry {
            Some(dry) if is_half(open.side.dtype.into()) || dry.is_about(self) => dry.reads(path),
            // Of others, such as those of validation, no gradient comes.
            None if base.is_tracked() => {
                let region = open.region.as_ref().map(|region| &region.name);
                self.live().regions().lock().read_in(region, path);
            }
            _ => {}
        }
        open.take_parameter(path, id, base)
    }
}

/// What the thread's scopes differ by, in a dry run.
pub(crate) fn dry_run() -> Option<Arc<DryRun>> {
    HERE.with_borrow(|here| here.dry.clone())
}

/// What gradients of this dtype are multiplied by where the thread is.
pub fn scale_here(dtype: DType) -> f64 {
    let open = innermost().filter(|_| is_half(dtype));
    open.map_or(1.0, |open| open.side.scale)
}

/// That of the enclosing scope, or of the model that a `Learner` trains.
pub(crate) fn current() -> Option<MixedPrecision> {
    HERE.with_borrow(|here| here.amp.clone())
}

/// Runs a model, or a part of one, in half precision, if a `Learner` trains the model with a [`MixedPrecision`], or a scope is open: it is
/// [`MixedPrecision::autocast`] of that one.
///
/// Elsewhere it runs in f32, so that the model stays a plain f32 model without a `MixedPrecision`. The log says so once
/// in a program that has made a [`MixedPrecision`] of half precision. Does not wait for the device.
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
        None => {
            warn_of_f32();
            forward(input)
        }
    }
}

/// Says once that a bare [`autocast`] runs in f32, if the program has made a [`MixedPrecision`] of half precision, which it may have meant.
fn warn_of_f32() {
    static SAID: Once = Once::new();
    if let Some(dry) = dry_run() {
        locked(&dry.notes).runs_in_f32 = true;
    } else if half_exists() {
        SAID.call_once(|| {
            warn!(
                "`autocast(input, ..)` runs in f32, because no `MixedPrecision` is in force here: write `amp.autocast(input, ..)`, or let \
                 `amp.launch(..)` train the model in a Learner. `MixedPrecision::f32().autocast(..)` says that f32 is meant"
            );
        });
    }
}

/// Runs a region of a half-precision model in f32: a norm, a recurrent layer, a softmax.
///
/// Takes and returns tensors, tuples and structures of them (states of an LSTM). Half-precision tensors are widened on the
/// way in and cast back on the way out; f32 and f64 tensors stay on the way in. Inside, parameters and captured tensors are
/// plain f32, and gradients are unscaled. Outside a scope, an f32 input stays f32 on the way out too.
///
/// Layers of Burn that hold f32 tensors of their own need it, because Burn refuses to combine them with f16: BatchNorm, Lstm,
/// Gru and other recurrent ones, positional encodings. Does not wait for the device.
///
/// ```
/// use burn::{nn::{BatchNormConfig, conv::Conv2dConfig}, tensor::{Device, Tensor}};
/// use burn_amp::{MixedPrecision, in_f32};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let conv = amp.attach(Conv2dConfig::new([1, 2], [3, 3]).init(&device));
/// let norm = amp.attach(BatchNormConfig::new(2).init(&device));
///
/// let output = amp.autocast(Tensor::<4>::ones([1, 1, 8, 8], &device), |x| {
///     in_f32(conv.forward(x), |x| norm.forward(x))
/// });
/// # let _ = output;
/// ```
pub fn in_f32<I: CastFloat, R: CastFloat>(input: I, forward: impl FnOnce(I) -> R) -> R {
    let region = Region {
        is_f32: true,
        ..Region::default()
    };
    region.run(input, forward)
}

/// An extra gradient scale for one region of a half-precision model, on top of the loss scale; it is removed where gradients leave the region.
///
/// For networks whose gradients span more than half precision holds, so that no loss scale serves all layers. `by` is a
/// [`Rescale`]: a power of two, or a factor with a name that moves by itself. Takes and returns what [`in_f32`] does. The forward pass is unchanged.
/// Gradients of parameters and of captured f32 tensors come out unscaled, those of the input as they would without the region. Half-precision tensors that come from
/// outside the region go through `input`: one that the closure captures keeps the factor in its gradient, which [`MixedPrecision::check`] finds.
///
/// Regions may be nested in regions, in `in_f32` and in scopes; their factors are multiplied. In f32, inside `in_f32` and outside of scopes, nothing is
/// multiplied, but scopes that open inside have the factor. The product with the loss scale stays between 2^-126 and 2^126.
///
/// Between two regions, gradients are in half precision with the factors of the regions that enclose both. So where a gradient shrinks from layer to layer, put
/// the early layers into a region inside a region, not beside it; or let f32 lie between them, by a scope in each region.
///
/// Does not wait for the device; but a region with a name waits for the steps in flight, and costs one pass over the gradient at each of its two
/// ends. An overflow in it skips the step, and lowers its factor in place of the loss scale.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
/// use burn_amp::{MixedPrecision, Rescale, rescaled};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let trunk = amp.attach(LinearConfig::new(4, 4).init(&device));
/// let head = amp.attach(LinearConfig::new(4, 1).init(&device));
///
/// let output = amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
///     let hidden = rescaled(Rescale::power_of_two(10), x, |x| trunk.forward(x)); // gradients times 2^10 in the trunk
///     head.forward(hidden)
/// });
/// # let _ = output;
/// ```
pub fn rescaled<I: CastFloat, R: CastFloat>(
    by: Rescale,
    input: I,
    forward: impl FnOnce(I) -> R,
) -> R {
    let region = Region {
        rescale: Some(by),
        ..Region::default()
    };
    region.run(input, forward)
}

/// A part of the forward pass, and how it differs from what encloses it: not at all, or in its precision, or in what its gradients are
/// multiplied by.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// By which others may decide what happens in it.
    pub name: Option<Arc<str>>,
    /// Whether parameters are plain in it.
    pub is_f32: bool,
    /// What it multiplies gradients by.
    pub rescale: Option<Rescale>,
}

impl Region {
    /// Runs it where the thread is, in a scope or outside of all.
    pub fn run<I: CastFloat, R: CastFloat>(self, input: I, forward: impl FnOnce(I) -> R) -> R {
        let here = Frame::here();
        let is_f32 = self.is_f32
            || match (&self.name, &here.dry) {
                // A dry run decides by names.
                (Some(name), Some(dry)) => dry.in_f32.contains(&**name),
                _ => false,
            };
        let outer = here.open.clone();
        let inside = outer.as_ref().filter(|_| !is_f32);
        let inside = inside.map(|outer| match &self.rescale {
            Some(rescale) => Arc::new(outer.rescaled(rescale)),
            None => outer.clone(),
        });
        let mut frame = Frame {
            open: inside.clone(),
            ..here
        };
        frame.rescales.extend(self.rescale.clone());
        let dry = frame.dry.clone();
        let forward = |input| frame.run(|| forward(input));
        let output = match (outer, inside, self.rescale) {
            (Some(outer), None, _) => {
                let output = forward(cast_each(input, |tensor| outer.widen(tensor)));
                cast_each(output, |tensor| outer.take_back(tensor))
            }
            (Some(outer), Some(inside), Some(rescale)) => {
                let [departure, arrival] = watches(&rescale, &outer, &inside);
                let departure = departure.as_ref();
                let output = forward(cast_each(input, |tensor| {
                    inside.take_from(&outer.side, tensor, departure)
                }));
                let arrival = arrival.as_ref();
                cast_each(output, |tensor| {
                    inside.let_out(tensor, &outer.side, arrival)
                })
            }
            (None, _, _) if is_f32 => widened(input, forward),
            _ => forward(input),
        };
        let (Some(name), Some(dry)) = (self.name, dry) else {
            return output;
        };
        cast_each(output, |tensor| {
            dry.keep(Some(name.clone()), &tensor);
            tensor
        })
    }
}

/// A region whose factor moves is measured where gradients leave it and where they come to it.
fn watches(rescale: &Rescale, outer: &Open, inside: &Open) -> [Option<Watch>; 2] {
    let is_moving = matches!(&rescale.0, RegionFactor::Moving(_));
    let is_measured = is_moving && inside.amp.is_scaled() && inside.dry.is_none();
    let Some(region) = inside.region.clone().filter(|_| is_measured) else {
        return [None, None];
    };
    let enclosing = outer.region.clone();
    let departure = EventPlace::Departure(region.clone(), enclosing.clone());
    [departure, EventPlace::Arrival(region, enclosing)].map(|place| Some(inside.watch(place)))
}

/// Runs a region in f32 outside of all scopes: what comes out goes back to the dtype of the first half-precision tensor that came in.
fn widened<I: CastFloat, R: CastFloat>(input: I, forward: impl FnOnce(I) -> R) -> R {
    let narrow = Cell::new(None);
    let output = forward(cast_each(input, |tensor| {
        if is_half(tensor.dtype()) && narrow.get().is_none() {
            narrow.set(Some(tensor.dtype()));
        }
        tensor.cast(FloatDType::F32)
    }));
    match narrow.get() {
        Some(dtype) => cast_each(output, |tensor| tensor.cast(dtype)),
        None => output,
    }
}
