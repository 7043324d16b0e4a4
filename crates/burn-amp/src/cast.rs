//! Values whose float tensors are cast together, and the casts over the border of half precision.

use burn::{
    nn::{LstmState, RnnState},
    tensor::{Bool, DType, FloatDType, Int, Tensor},
};
use burn_amp_kernels::{Factor, Watch, scaled_cast, watched_cast};
use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    ahead::Ahead,
    dtype::is_half,
    error::AmpError,
    live_scale::Region,
    mixed_precision::MixedPrecision,
    observe::{Notes, Observer},
    probe::Probe,
    rescale::Rescale,
};

/// A value whose float tensors can be cast together: what goes into [`autocast`](crate::MixedPrecision::autocast) and
/// [`in_f32`](crate::in_f32), and what comes out. Or losses that [`GradScaler::scale`](crate::GradScaler::scale) multiplies;
/// numbers stay as they are there too.
///
/// Implemented for tensors (integers and booleans stay as they are), for numbers, for `Option`, `Vec`, arrays and tuples,
/// and for the states of Burn's recurrent layers. [`cast_fields!`](crate::cast_fields) implements it for a batch of your
/// own in one line. Burn's `MhaInput` and `TransformerEncoderInput` keep their tensors private: build them inside.
#[diagnostic::on_unimplemented(
    message = "`autocast`, `in_f32`, `cast` and `scale` do not know how to find the tensors of `{Self}`",
    label = "its float tensors cannot be found",
    note = "pass the tensors themselves, a tuple or a `Vec` of them, and build `{Self}` inside",
    note = "or name its float fields once: `burn_amp::cast_fields!({Self} {{ images, weights }});`"
)]
pub trait CastFloat {
    /// Returns the same value with its float tensors cast by [`Cast::apply`]. Does not wait for the device.
    fn cast_float(self, cast: &Cast<'_>) -> Self;
}

/// Implements [`CastFloat`] for a structure: its named fields are cast, the others stay.
///
/// ```
/// use burn::tensor::{Int, Tensor};
///
/// struct Batch {
///     images: Tensor<3>,
///     targets: Tensor<1, Int>,
/// }
///
/// burn_amp::cast_fields!(Batch { images });
/// ```
#[macro_export]
macro_rules! cast_fields {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::CastFloat for $name {
            fn cast_float(mut self, cast: &$crate::Cast<'_>) -> Self {
                $(self.$field = $crate::CastFloat::cast_float(self.$field, cast);)*
                self
            }
        }
    };
}

impl<const D: usize> CastFloat for Tensor<D> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        cast.apply(self)
    }
}

impl<const D: usize> CastFloat for LstmState<D> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        Self {
            cell: cast.apply(self.cell),
            hidden: cast.apply(self.hidden),
        }
    }
}

impl<const D: usize> CastFloat for RnnState<D> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        Self {
            hidden: cast.apply(self.hidden),
        }
    }
}

impl<T: CastFloat> CastFloat for Option<T> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        self.map(|value| value.cast_float(cast))
    }
}

impl<T: CastFloat> CastFloat for Vec<T> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        let values = self.into_iter();
        values.map(|value| value.cast_float(cast)).collect()
    }
}

impl<T: CastFloat, const N: usize> CastFloat for [T; N] {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        self.map(|value| value.cast_float(cast))
    }
}

macro_rules! stays {
    ($($type:ty),* $(,)?) => {
        $(impl CastFloat for $type {
            fn cast_float(self, _cast: &Cast<'_>) -> Self {
                self
            }
        })*
    };
}

impl<const D: usize> CastFloat for Tensor<D, Int> {
    fn cast_float(self, _cast: &Cast<'_>) -> Self {
        self
    }
}

impl<const D: usize> CastFloat for Tensor<D, Bool> {
    fn cast_float(self, _cast: &Cast<'_>) -> Self {
        self
    }
}

stays!((), bool, u8, u32, u64, usize, i32, i64, f32, f64, String);

macro_rules! tuple {
    ($($name:ident),+) => {
        impl<$($name: CastFloat),+> CastFloat for ($($name,)+) {
            #[allow(non_snake_case)]
            fn cast_float(self, cast: &Cast<'_>) -> Self {
                let ($($name,)+) = self;
                ($($name.cast_float(cast),)+)
            }
        }
    };
}

tuple!(A);
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);
tuple!(A, B, C, D, E);
tuple!(A, B, C, D, E, F);
tuple!(A, B, C, D, E, F, G);
tuple!(A, B, C, D, E, F, G, H);

/// A scope that is open, or a part of one with a scale of its own.
pub(crate) struct Open {
    pub(crate) amp: MixedPrecision,
    pub(crate) side: Side,
    pub(crate) number: u64,
    /// The factor of which this is a part.
    pub(crate) rescale: Option<Rescale>,
    /// The innermost part around whose factor moves.
    pub(crate) region: Option<Arc<Region>>,
    /// What gradients are multiplied by beside the loss scale.
    pub(crate) shift: f64,
    pub(crate) dry: Option<DryRun>,
    pub(crate) told: Arc<Told>,
}

/// What is known of a scope when it closes, that of its parts included.
#[derive(Default)]
pub(crate) struct Told {
    /// What was refused in it.
    pub(crate) refused: Mutex<Option<AmpError>>,
    /// The parameter that was read last, to say where a dtype clashed.
    pub(crate) last_read: Mutex<Option<Arc<str>>>,
}

/// How the scopes of a dry run differ.
#[derive(Clone)]
pub(crate) struct DryRun {
    /// In place of the loss scale.
    pub(crate) scale: f64,
    /// In place of the factors of parts: each times this.
    pub(crate) parts: f64,
    /// Measures what passes the casts.
    pub(crate) probe: Option<Probe>,
    /// Whether a part was opened.
    pub(crate) has_parts: Arc<AtomicBool>,
    /// In place of that of the `MixedPrecision`.
    pub(crate) dtype: Option<FloatDType>,
    pub(crate) notes: Option<Notes>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl DryRun {
    /// With this in place of the loss scale.
    pub(crate) fn at(scale: f64) -> Self {
        Self {
            scale,
            parts: 1.0,
            probe: None,
            has_parts: Arc::default(),
            dtype: None,
            notes: None,
            observer: None,
        }
    }
}

/// One side of a border: the dtype of its tensors, and what their gradients are multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) dtype: FloatDType,
    pub(crate) scale: f64,
    /// What else, where only the device knows it.
    pub(crate) ahead: Option<Arc<Ahead>>,
}

impl Side {
    pub(crate) const OUTSIDE: Self = Self {
        dtype: FloatDType::F32,
        scale: 1.0,
        ahead: None,
    };

    fn is_outside(&self) -> bool {
        self.dtype == FloatDType::F32 && self.scale == 1.0 && self.ahead.is_none()
    }

    /// What gradients are multiplied by that come back from `to`.
    fn factor(&self, to: &Self) -> Factor {
        let ratio = self.scale / to.scale;
        let scale = match (&self.ahead, &to.ahead) {
            (None, None) => return ratio.into(),
            (Some(from), Some(to)) if Arc::ptr_eq(from, to) => return ratio.into(),
            (Some(from), None) => from.factor(),
            (None, Some(to)) => to.inverse(),
            (Some(from), Some(to)) => from.factor() * to.inverse(),
        };
        Factor::on_device(ratio, scale)
    }

    pub(crate) fn holds(&self, dtype: DType) -> bool {
        dtype == DType::from(self.dtype)
    }
}

impl Open {
    /// Takes a tensor of one side to another, one of which is that of this scope.
    pub(crate) fn cross<const D: usize>(
        &self,
        from: &Side,
        to: &Side,
        tensor: Tensor<D>,
    ) -> Tensor<D> {
        match self.dry.as_ref().and_then(|dry| dry.probe.as_ref()) {
            Some(probe) => {
                let factor = from.scale / to.scale;
                let watch = probe.watch(tensor.dtype(), to.dtype.into(), factor);
                watched_cast(tensor, to.dtype, factor, &watch)
            }
            None => scaled_cast(tensor, to.dtype, from.factor(to)),
        }
    }

    /// Takes a tensor in that is not of the scope.
    pub(crate) fn take_in<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let dtype = tensor.dtype();
        if is_half(dtype) && tensor.is_tracked() {
            // On its way back its gradient would be rounded to half precision without the scale.
            self.refuse(AmpError::HalfPrecisionInput { dtype });
        }
        self.cross(&Side::OUTSIDE, &self.side, tensor)
    }

    pub(crate) fn refuse(&self, error: AmpError) {
        let mut refused = self
            .told
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        refused.get_or_insert(error);
    }

    pub(crate) fn take_refused(&self) -> Option<AmpError> {
        let mut refused = self
            .told
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        refused.take()
    }
}

/// What happens to the float tensors of a value: they are cast, each by its dtype, or multiplied by the loss scale. See
/// [`CastFloat`].
///
/// Needed only to implement [`CastFloat`] for a structure of your own.
pub struct Cast<'a>(pub(crate) Way<'a>);

pub(crate) enum Way<'a> {
    /// Into a scope, from outside or from another one.
    Enter {
        outer: Option<Side>,
        open: &'a Open,
        /// Whether a tensor was of the outer scope.
        nested: Cell<bool>,
        watch: Option<Watch>,
    },
    /// Out of a scope.
    Exit {
        open: &'a Open,
        to: Side,
        watch: Option<Watch>,
    },
    /// To the side of a scope that is open.
    Into(&'a Open),
    /// Out of an open scope, for a part in f32.
    OutOf(&'a Open),
    /// To f32 where there is no scope. Keeps the dtype of the first half-precision tensor.
    Widen(Cell<Option<FloatDType>>),
    /// Burn's cast.
    Plain(FloatDType),
    /// Multiplies losses, in f32 (in f64 if they are f64), and keeps what they were.
    Scale {
        scale: f32,
        seen: RefCell<Vec<Tensor<1>>>,
    },
}

impl Cast<'_> {
    /// Casts one tensor of any rank. f64 and quantized tensors stay as they are. Does not wait for the device.
    ///
    /// In [`GradScaler::scale`](crate::GradScaler::scale) it multiplies the tensor by the loss scale, f64 ones included.
    pub fn apply<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let dtype = tensor.dtype();
        if let Way::Scale { scale, seen } = &self.0 {
            return multiply(tensor, *scale, seen);
        }
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            return tensor;
        }
        match &self.0 {
            Way::Enter {
                outer,
                open,
                nested,
                watch,
            } => match outer.as_ref().filter(|outer| outer.holds(dtype)) {
                Some(outer) => {
                    nested.set(true);
                    match watch {
                        Some(watch) => {
                            let factor = outer.factor(&open.side);
                            watched_cast(tensor, open.side.dtype, factor, watch)
                        }
                        None => open.cross(outer, &open.side, tensor),
                    }
                }
                None => open.take_in(tensor),
            },
            Way::Exit { open, to, watch } if open.side.holds(dtype) => match watch {
                Some(watch) => {
                    if to.is_outside() {
                        warn_of_a_loss(&tensor);
                    }
                    let factor = open.side.factor(to);
                    watched_cast(tensor, to.dtype, factor, watch)
                }
                None => {
                    let notes = open.dry.as_ref().and_then(|dry| dry.notes.as_ref());
                    if let Some(notes) = notes.filter(|_| to.is_outside()) {
                        notes.leaves(&tensor);
                    }
                    open.cross(&open.side, to, tensor)
                }
            },
            Way::Exit { open, .. } => {
                if tensor.is_tracked() {
                    open.refuse(AmpError::CapturedOutput { dtype });
                }
                tensor.cast(FloatDType::F32)
            }
            Way::Into(open) if open.side.holds(dtype) => tensor,
            Way::Into(open) => open.take_in(tensor),
            Way::OutOf(open) if open.side.holds(dtype) => {
                open.cross(&open.side, &Side::OUTSIDE, tensor)
            }
            Way::OutOf(_) => tensor.cast(FloatDType::F32),
            Way::Widen(seen) => {
                if is_half(dtype) && seen.get().is_none() {
                    seen.set(Some(dtype.into()));
                }
                tensor.cast(FloatDType::F32)
            }
            Way::Plain(dtype) => tensor.cast(*dtype),
            Way::Scale { .. } => tensor,
        }
    }
}

/// Multiplies all losses of a value by the loss scale. What they were before, flat and without their graphs, comes second.
pub(crate) fn multiply_losses<T: CastFloat>(losses: T, scale: f32) -> (T, Vec<Tensor<1>>) {
    let cast = Cast(Way::Scale {
        scale,
        seen: RefCell::default(),
    });
    let losses = losses.cast_float(&cast);
    match cast.0 {
        Way::Scale { seen, .. } => (losses, seen.into_inner()),
        _ => (losses, Vec::new()),
    }
}

fn multiply<const D: usize>(
    loss: Tensor<D>,
    scale: f32,
    seen: &RefCell<Vec<Tensor<1>>>,
) -> Tensor<D> {
    let elements = loss.shape().num_elements();
    // `reshape` reads a 0 as "keep this dimension".
    if elements > 0 {
        let flat = loss.clone().inner().reshape([elements]);
        seen.borrow_mut().push(flat);
    }
    // 65536 is infinite in f16, and so would be most products with it.
    let loss = match loss.dtype() {
        DType::F64 => loss,
        _ => loss.cast(FloatDType::F32),
    };
    loss.mul_scalar(scale)
}

impl std::fmt::Debug for Cast<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cast")
    }
}

/// A scalar cannot carry the loss scale: its gradient starts at 1 and is multiplied beyond f16 at once.
fn warn_of_a_loss<const D: usize>(tensor: &Tensor<D>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if is_half(tensor.dtype())
        && tensor.is_tracked()
        && tensor.shape().num_elements() == 1
        && !SAID.swap(true, Ordering::Relaxed)
    {
        log::warn!(
            "`autocast` returns a single {:?} value that requires gradients: if it is a loss, take it outside, in f32. Reduced \
             in half precision it loses digits, and its gradient times the loss scale overflows",
            tensor.dtype()
        );
    }
}
