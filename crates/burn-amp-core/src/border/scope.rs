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

use burn::module::{Module, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_amp_kernels::panic_message;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, atomic::Ordering};

use super::cast::{CastFloat, cast_each};
use super::dry_run::DryRun;
use super::mixed_precision::{MixedPrecision, half_exists};
use super::observer::Observer;
use super::open_scope::{OpenScope, Side};
use crate::error::{AmpError, BorderFault, or_panic};
use crate::values::{AnyTensor, SCOPED, is_half};
use crate::{
    lock::locked,
    scale::border_events::next_number,
    scale::region::{Factor, Region, Rescale},
};

thread_local! {
    /// The parts of the forward pass that this thread is in.
    static HERE: RefCell<Scope> = RefCell::default();
    /// The error with which a scope of this thread panicked last.
    static REFUSED: RefCell<Option<AmpError>> = const { RefCell::new(None) };
}

/// Runs a forward pass whose scopes differ from those of a step, and gives back what a scope in it has refused. A bare [`autocast`] opens
/// scopes of the one that is judged, if it does so in the training.
pub(crate) fn in_dry_run<R>(
    dry: &Arc<DryRun>,
    forward: impl FnOnce() -> R,
) -> (R, Option<AmpError>) {
    REFUSED.set(None);
    let here = Scope::current();
    let scope = Scope {
        open: None,
        amp: dry.in_learner.then(|| dry.amp.clone()).or(here.amp),
        dry: Some(dry.clone()),
        ..here
    };
    let result = scope.enter(forward);
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
#[derive(Clone, Default)]
pub struct Scope {
    /// The half precision that it is in; none in f32, where parameters are plain.
    open: Option<Arc<OpenScope>>,
    /// Set while a scope is open, in an island of f32 too.
    is_inside: bool,
    /// The regions with factors that it is in; in f32, those of the scopes inside.
    regions: Vec<Region>,
    /// The handle of the scopes that a bare `autocast` opens.
    amp: Option<MixedPrecision>,
    /// The dry run that it is in.
    dry: Option<Arc<DryRun>>,
}

impl Scope {
    /// Returns the part that the calling thread is in: a scope, a region of one ([`in_f32`] or [`rescaled`]), or none of these.
    pub fn current() -> Self {
        HERE.with_borrow(Clone::clone)
    }

    /// Runs `work` on the calling thread as if it were where [`current`](Self::current) was called.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Leaves it on a panic too.
        struct Leave(Scope);

        impl Drop for Leave {
            fn drop(&mut self) {
                HERE.set(std::mem::take(&mut self.0));
            }
        }

        let _leave = Leave(HERE.replace(self.clone()));
        work()
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = self.open.as_ref().map(|open| &open.side);
        f.debug_struct("Scope").field("side", &side).finish()
    }
}

/// Finds the error that a panic inside was about, if it is a clash of dtypes or follows from a use that was refused; others go on.
fn explain(open: &OpenScope, panic: Box<dyn Any + Send>) -> AmpError {
    let (refused, last_read) = {
        let mut notes = locked(&open.notes);
        (notes.refused.take(), notes.last_read.clone())
    };
    // A scope inside this one may have said already what is wrong.
    let message = panic_message(&*panic);
    let is_it = |error: &AmpError| error.to_string() == message;
    if let Some(error) = refused.or_else(|| REFUSED.take().filter(is_it)) {
        return error;
    }
    let dtype = open.side.dtype.into();
    if OF_THREADS.iter().any(|said| message.contains(said))
        && let Some((number, path)) = &*locked(&open.amp.shared.read_elsewhere)
        && *number > open.number
    {
        return AmpError::border(BorderFault::Thread, Some(path), dtype);
    }
    dtype_clash(panic, dtype, last_read, open.amp.is_attached())
}

/// Makes an error of a panic of Burn's because of two dtypes; others go on.
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
    let what = BorderFault::Clash { attached, message };
    AmpError::border(what, parameter.as_deref(), dtype)
}

/// The words of Burn 0.22.1 when two dtypes meet: its Flex backend (an operation on two tensors, a layer norm), its fusion, its
/// ndarray backend, and an einsum; and those of Burn 0.23's layers.
const CLASHES: [&str; 7] = [
    "dtype mismatch",
    "does not match input dtype",
    "DTypeMismatch",
    "Data type mismatch",
    "data type mismatch",
    "must have the same dtype",
    "do not have the same dtype",
];

/// The message of a thread's panic where another one has joined it: its own is lost.
const OF_THREADS: [&str; 2] = ["Any { .. }", "a scoped thread panicked"];

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
        match self.try_autocast(input, forward) {
            Ok(output) => output,
            Err(error) => {
                REFUSED.set(Some(error.clone()));
                or_panic(Err(error))
            }
        }
    }

    /// Does the same as [`autocast`](Self::autocast), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::Border`], of which [`BorderFault`] has the cases: if a half-precision tensor that requires gradients comes in from outside,
    /// or such a parameter is read, if an f32 tensor that
    /// requires gradients is returned, or anything does although nothing that does has come in,
    /// if Burn panics because of two dtypes inside, if a thread that `forward` waits for panics, and
    /// parameters were read there, or if `forward` itself calls `backward` and the loss scale is not 1.
    /// [`AmpError::UnsupportedDType`] and [`AmpError::UncheckedDTypes`] as [`check_device`](Self::check_device),
    /// and [`AmpError::InvalidValue`] for a
    /// [`rescaled`] region whose power of two is outside -126 to 126.
    pub fn try_autocast<I: CastFloat, R: CastFloat>(
        &self,
        input: I,
        forward: impl FnOnce(I) -> R,
    ) -> Result<R, AmpError> {
        let here = Scope::current();
        let open = OpenScope::new(self, here.dry.clone(), &here.regions);
        let open = Arc::new(open);
        let is_nested = Cell::new(false);
        let around = here.open.as_ref().map_or(&Side::OUTSIDE, |open| &open.side);
        let input = cast_each(input, |tensor| {
            is_nested.set(is_nested.get() || tensor.dtype() == around.dtype.into());
            open.take(around, tensor, None, true)
        });
        // A thread pool may put other work on a thread that waits inside a scope. Its tensors are not of that scope.
        let outer = here.open.clone().filter(|_| is_nested.get());
        if let Some(outer) = &outer {
            locked(&open.notes).outer = Some(outer.notes.clone());
        }
        let is_inside = here.is_inside && (outer.is_some() || here.open.is_none());
        // The scope around this one sees what comes to it, if that is multiplied there.
        let is_seen = here.is_inside && outer.is_some();
        let scope = Scope {
            open: Some(open.clone()),
            is_inside: is_inside || self.is_scaled(),
            amp: Some(self.clone()),
            ..here
        };
        let result = scope.enter(|| catch_unwind(AssertUnwindSafe(|| forward(input))));
        {
            let mut notes = locked(&open.notes);
            notes.is_closed = true;
            if let (Some(path), None) = (&notes.last_read, &open.dry) {
                *locked(&self.live().last_read) = Some(path.clone());
            }
        }
        let output = result.map_err(|panic| explain(&open, panic))?;
        let watch = (!is_seen && open.is_step).then(|| open.watch_scope());
        let outside = outer.as_ref().map_or(&Side::OUTSIDE, |outer| &outer.side);
        let output = cast_each(output, |tensor| {
            let tensor = open.let_out(tensor, outside, watch.as_ref());
            match (&outer, &open.dry) {
                (Some(outer), _) => outer.note(&tensor),
                (None, Some(dry)) => dry.keep(None, &tensor),
                _ => {}
            }
            tensor
        });
        let refused = locked(&open.notes).refused.take();
        refused.map_or(Ok(output), Err)
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
        match Scope::current().open {
            Some(open) => cast_each(value, |tensor| open.take_captured(tensor, true)),
            None => cast_each(value, |tensor| tensor.cast(self.dtype())),
        }
    }
}

impl Reparameterizer for MixedPrecision {
    type Reparam = ScopedParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        // The first forward pass would end in a panic of a kernel's compiler.
        or_panic(self.check_device(&param.lazy_device()));
        self.shared.attached.store(true, Ordering::Relaxed);
        let scoped = ScopedParameter {
            amp: self.clone(),
            path: path.into(),
            id: param.id,
        };
        (param, Some(scoped))
    }
}

/// The part of [`MixedPrecision`] that is attached to a parameter: inside a scope it appears in half precision, elsewhere as it is.
///
/// The stored parameter, its gradient and its record keep their own dtype.
#[derive(Module, Debug)]
pub struct ScopedParameter {
    #[module(skip)]
    amp: MixedPrecision,
    #[module(skip)]
    path: Arc<str>,
    /// The parameter's id when it was attached.
    #[module(skip)]
    id: ParamId,
}

impl Reparameterization for ScopedParameter {
    const NAME: &'static str = SCOPED;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let here = Scope::current();
        let base = AnyTensor::with_graph(base);
        let value = match here.open.filter(|open| open.amp == self.amp) {
            Some(open) => open.take_parameter(&self.path, self.id, base),
            None => {
                if !here.is_inside {
                    let read = Some((next_number(), self.path.clone()));
                    *locked(&self.amp.shared.read_elsewhere) = read;
                }
                base
            }
        };
        value.into_handle()
    }
}

/// The observer of the dry run that the thread is in; or that of the enclosing scope, or of the model that a `Learner` trains.
pub fn observer_here() -> Option<Arc<dyn Observer>> {
    match Scope::current() {
        Scope { dry: Some(dry), .. } => dry.observer.clone(),
        Scope { amp, .. } => amp?.observer(),
    }
}

/// Returns the multiple of gradients of this dtype where the thread is.
pub fn scale_here(dtype: DType) -> f64 {
    let open = Scope::current().open.filter(|_| is_half(dtype));
    open.map_or(1.0, |open| open.side.scale)
}

/// Runs a model in which a bare [`autocast`] opens scopes of this handle.
pub fn in_model<R>(amp: &MixedPrecision, work: impl FnOnce() -> R) -> R {
    let scope = Scope {
        open: None,
        amp: Some(amp.clone()),
        ..Scope::current()
    };
    scope.enter(work)
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
/// Panics as [`MixedPrecision::autocast`].
#[track_caller]
pub fn autocast<I: CastFloat, R: CastFloat>(input: I, forward: impl FnOnce(I) -> R) -> R {
    match Scope::current().amp {
        Some(amp) => amp.autocast(input, forward),
        None => {
            warn_of_f32();
            forward(input)
        }
    }
}

/// Says once that a bare [`autocast`] runs in f32, if the program has made a [`MixedPrecision`] of half precision, which it may have meant.
fn warn_of_f32() {
    if let Some(dry) = Scope::current().dry {
        locked(&dry.notes).runs_in_f32 = true;
    } else if half_exists() {
        warn_once!(
            "`autocast(input, ..)` runs in f32, because no `MixedPrecision` is in force here: write `amp.autocast(input, ..)`, or let \
             `amp.launch(..)` train the model in a Learner. `MixedPrecision::f32().autocast(..)` says that f32 is meant"
        );
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
    by.0.run(input, forward)
}

impl Region {
    /// Runs it where the thread is, in a scope or outside of all.
    pub fn run<I: CastFloat, R: CastFloat>(self, input: I, forward: impl FnOnce(I) -> R) -> R {
        let here = Scope::current();
        // A dry run decides by names.
        let is_in_f32 = |dry: &Arc<DryRun>| {
            let name = self.name.as_deref();
            name.is_some_and(|name| dry.in_f32.contains(name))
        };
        let is_f32 = self.is_f32 || here.dry.as_ref().is_some_and(is_in_f32);
        let has_factor = self.factor != Factor::One;
        let outer = here.open.clone();
        let inside = (outer.clone().filter(|_| !is_f32)).map(|outer| match has_factor {
            true => outer.inside(&self).into(),
            false => outer,
        });
        let mut scope = Scope {
            open: inside.clone(),
            ..here
        };
        scope.regions.extend(has_factor.then(|| self.clone()));
        let dry = scope.dry.clone();
        let forward = |input| scope.enter(|| forward(input));
        let output = match (outer, inside) {
            (Some(outer), None) => {
                let output = forward(cast_each(input, |tensor| outer.widen(tensor)));
                // As for those that come in: see `widen`.
                cast_each(output, |tensor| {
                    let keeps = tensor.is_kept_for_nothing();
                    outer.take_captured(tensor, keeps)
                })
            }
            (Some(outer), Some(inside)) if has_factor => {
                let [departure, arrival] = inside.watch_region(&outer);
                let departure = departure.as_ref();
                let output = forward(cast_each(input, |tensor| {
                    inside.take(&outer.side, tensor, departure, true)
                }));
                let arrival = arrival.as_ref();
                cast_each(output, |tensor| {
                    inside.let_out(tensor, &outer.side, arrival)
                })
            }
            (None, _) if is_f32 => widened(input, forward),
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
