//! The border of half precision: what is known of a scope that is open, and the casts over its border.

use burn::module::ParamId;
use burn::tensor::{DType, Device, FloatDType};
use burn_amp_kernels::{Factor, Watch, can_watch};
use std::cell::Cell;
use std::sync::{Arc, Mutex, Once};

use crate::scale::border_events::{EventPlace, OpenRegion};
use crate::scale::rescale::{RegionFactor, Rescale};
use crate::values::{AnyTensor, is_half};
use crate::{
    border::dry_run::DryRun, border::mixed_precision::MixedPrecision, error::AmpError,
    lock::locked, scale::device_step::DeviceStep,
};

/// The factor between two sides, and its inverse, must be normal in f32, or gradients lose digits.
const MAX_EXPONENT: u32 = 126;
const LARGEST: f64 = f64::from_bits((1023 + MAX_EXPONENT as u64) << 52);

thread_local! {
    /// Whether gradients that come back to this thread's scopes are multiplied there, and no optimizer of theirs has tested any since.
    pub(crate) static SCALES_GRADIENTS: Cell<bool> = const { Cell::new(false) };
}

/// A scope that is open, or a region of one with a scale of its own.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) amp: MixedPrecision,
    pub(crate) side: Side,
    pub(crate) number: u64,
    /// The innermost region whose factor moves.
    pub(crate) region: Option<Arc<OpenRegion>>,
    /// What gradients are multiplied by beside the loss scale.
    pub(crate) shift: f64,
    pub(crate) dry: Option<Arc<DryRun>>,
    pub(crate) notes: Arc<Mutex<ScopeNotes>>,
}

/// What is known of a scope when it closes, that of its regions included.
#[derive(Default)]
pub(crate) struct ScopeNotes {
    /// What was refused in it.
    pub(crate) refused: Option<AmpError>,
    /// The parameter that was read last, to say where a dtype clashed.
    pub(crate) last_read: Option<Arc<str>>,
    /// Whether a tensor that requires gradients has come in, parameters included.
    pub(crate) has_gradients: bool,
    /// Whether gradients come back into it through a watch, and none has so far.
    pub(crate) awaits_gradients: bool,
    /// Whether the closure has returned.
    pub(crate) is_closed: bool,
    /// Of the enclosing scope, to which its results go back in half precision.
    pub(crate) outer: Option<Arc<Mutex<Self>>>,
}

impl ScopeNotes {
    /// The innermost scope from here whose closure has not returned.
    fn running(notes: Arc<Mutex<Self>>) -> Option<Arc<Mutex<Self>>> {
        let known = locked(&notes);
        let (is_closed, outer) = (known.is_closed, known.outer.clone());
        drop(known);
        match is_closed {
            true => Self::running(outer?),
            false => Some(notes),
        }
    }
}

/// One side of a border: the dtype of its tensors, and what their gradients are multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) dtype: FloatDType,
    pub(crate) scale: f64,
    /// What else, where only the device knows it.
    pub(crate) device_step: Option<Arc<DeviceStep>>,
}

impl Side {
    pub(crate) const OUTSIDE: Self = Self {
        dtype: FloatDType::F32,
        scale: 1.0,
        device_step: None,
    };

    fn is_outside(&self) -> bool {
        self.dtype == FloatDType::F32 && self.scale == 1.0 && self.device_step.is_none()
    }

    /// What gradients are multiplied by that come back from `to`.
    fn factor(&self, to: &Self) -> Factor {
        let ratio = self.scale / to.scale;
        let scale = match (&self.device_step, &to.device_step) {
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
    /// A region inside this, with a factor of its own.
    pub(crate) fn rescaled(&self, rescale: &Rescale) -> Self {
        let mut region = self.region.clone();
        let factor = match &rescale.0 {
            RegionFactor::Fixed(exponent) => self.power_of_two(*exponent),
            RegionFactor::Moving(named)
                if self.amp.is_scaled() && named.schedule.config().enabled =>
            {
                // Of the steps in flight none has opened it, and each ends an iteration.
                self.amp.live().resolve(true);
                let factor = self.amp.live().regions().enter(named, self.dry.is_some());
                region = Some(Arc::new(OpenRegion {
                    name: named.name.clone(),
                    factor: factor.into(),
                    outer_factor: self.shift,
                }));
                factor.into()
            }
            RegionFactor::Moving(_) => 1.0,
        };
        let limited = |value: f64| value.clamp(1.0 / LARGEST, LARGEST);
        let mut side = self.side.clone();
        if side.dtype != FloatDType::F32 {
            side.scale = limited(side.scale * limited(factor));
        }
        Self {
            side,
            region,
            shift: limited(self.shift * factor),
            ..self.clone()
        }
    }

    /// 2^exponent; 1 if that is refused.
    fn power_of_two(&self, exponent: i32) -> f64 {
        if exponent.unsigned_abs() > MAX_EXPONENT {
            let allowed = format!("between -{MAX_EXPONENT} and {MAX_EXPONENT}");
            self.refuse(AmpError::invalid("power_of_two", exponent, allowed));
            return 1.0;
        }
        f64::from(exponent).exp2()
    }

    /// Whether gradients are multiplied by something.
    fn has_scale(&self) -> bool {
        self.side.scale != 1.0 || (self.side.device_step.is_some() && self.amp.loss_scale() != 1.0)
    }

    /// Looks at the output too: an overflow in the forward pass is not caused by the scale.
    pub(crate) fn watch_scope(&self) -> Watch {
        let amp = self.amp.clone();
        let place = EventPlace::Scope(self.number, self.region.clone());
        let notes = self.notes.clone();
        locked(&notes).awaits_gradients = self.has_scale();
        Watch::new(move |event| {
            locked(&notes).awaits_gradients = false;
            amp.live().add_event(place.clone(), event);
        })
    }

    pub(crate) fn watch(&self, place: EventPlace) -> Watch {
        let amp = self.amp.clone();
        Watch::of_gradient(move |event| amp.live().add_event(place.clone(), event))
    }

    /// Keeps gradients that go from half precision to f32, or come back from there, in steps.
    fn watch_passing(
        &self,
        place: fn(u64, Option<Arc<OpenRegion>>) -> EventPlace,
    ) -> Option<Watch> {
        let is_watched = self.amp.is_scaled() && self.dry.is_none();
        let amp = is_watched.then(|| self.amp.clone())?;
        let place = place(self.number, self.region.clone());
        let returned = matches!(place, EventPlace::Return(..)).then(|| self.notes.clone());
        Some(Watch::of_passing(move |gradient| {
            (returned.iter()).for_each(|notes| locked(notes).awaits_gradients = false);
            amp.live().keep_gradient(place.clone(), gradient);
        }))
    }

    /// The same of a part in f32 inside. Elsewhere than on Flex it would be one more launch, beside what Fusion makes one kernel of.
    fn watch_island(
        &self,
        tensor: &AnyTensor,
        place: fn(u64, Option<Arc<OpenRegion>>) -> EventPlace,
    ) -> Option<Watch> {
        self.watch_passing(place).filter(|_| tensor.is_known_now())
    }

    /// Takes a tensor of one side to another, one of which is that of this scope. The watch is not asked in a dry run, which measures by
    /// itself.
    pub(crate) fn cross(
        &self,
        from: &Side,
        to: &Side,
        tensor: AnyTensor,
        watch: Option<&Watch>,
    ) -> AnyTensor {
        let dry = self.dry.as_ref();
        match dry.filter(|dry| dry.is_measured && dry.is_about(&self.amp)) {
            Some(dry) => {
                let factor = from.scale / to.scale;
                let watch = dry.watch(tensor.dtype(), to.dtype.into(), factor);
                tensor.scaled_cast(to.dtype, factor.into(), Some(&watch))
            }
            None => tensor.scaled_cast(to.dtype, from.factor(to), watch),
        }
    }

    /// Takes a tensor in that is not of the scope.
    fn take_in(&self, tensor: AnyTensor, watch: Option<Watch>) -> AnyTensor {
        let dtype = tensor.dtype();
        if is_half(dtype) && tensor.is_tracked() {
            // On its way back its gradient would be rounded to half precision without the scale.
            self.refuse(AmpError::HalfPrecisionInput { dtype });
        }
        self.meets(&tensor);
        self.note(&tensor);
        self.cross(&Side::OUTSIDE, &self.side, tensor, watch.as_ref())
    }

    /// Refuses a device on which two dtypes may meet: that of a model which was not attached was asked by nobody.
    fn meets(&self, tensor: &AnyTensor) {
        if let Err(error) = self.amp.meets(tensor.device()) {
            self.refuse(error);
        }
    }

    /// Takes a tensor in that may be of another side.
    pub(crate) fn take_from(
        &self,
        from: &Side,
        tensor: AnyTensor,
        watch: Option<&Watch>,
    ) -> AnyTensor {
        let left = self.watch_passing(EventPlace::Left);
        if !from.holds(tensor.dtype()) {
            return self.take_in(tensor, left);
        }
        if from.is_outside() {
            self.meets(&tensor);
        }
        self.note(&tensor);
        let left = left.as_ref().filter(|_| from.is_outside());
        self.cross(from, &self.side, tensor, watch.or(left))
    }

    /// Notes what a tensor that comes in brings with it.
    pub(crate) fn note(&self, tensor: &AnyTensor) {
        if tensor.is_tracked() {
            locked(&self.notes).has_gradients = true;
        }
    }

    /// Takes a tensor in, unless it is of the scope already.
    pub(crate) fn take(&self, tensor: AnyTensor) -> AnyTensor {
        match self.side.holds(tensor.dtype()) {
            true => tensor,
            false => self.take_in(tensor, self.watch_passing(EventPlace::Left)),
        }
    }

    /// As [`take`](Self::take), of what a part in f32 has made inside.
    pub(crate) fn take_back(&self, tensor: AnyTensor) -> AnyTensor {
        match self.side.holds(tensor.dtype()) {
            true => tensor,
            false => {
                let watch = self.watch_island(&tensor, EventPlace::Left);
                self.take_in(tensor, watch)
            }
        }
    }

    /// Takes a parameter in. While the closure runs, its gradient comes from a `backward` inside, which lacks the loss scale.
    pub(crate) fn take_parameter(
        &self,
        path: &Arc<str>,
        id: ParamId,
        base: AnyTensor,
    ) -> AnyTensor {
        self.note(&base);
        let is_scaled = self.side.scale != 1.0 || self.side.device_step.is_some();
        let is_step = self.amp.is_scaled() && self.dry.is_none();
        let watch = (base.is_tracked() && (is_scaled || is_step)).then(|| {
            let place = EventPlace::Parameter(self.number, self.region.clone());
            let (notes, path, amp) = (self.notes.clone(), path.clone(), self.amp.clone());
            Watch::of_passing(move |gradient| {
                let awaits_gradients = locked(&notes).awaits_gradients;
                if is_scaled && let Some(notes) = ScopeNotes::running(notes.clone()) {
                    let mut notes = locked(&notes);
                    let parameter = path.to_string();
                    let error = AmpError::BackwardInside { parameter };
                    notes.refused.get_or_insert(error);
                } else if is_step {
                    if awaits_gradients {
                        warn_of_a_leak(&path, &gradient.device());
                    }
                    amp.live().keep_of_parameter(place.clone(), id, gradient);
                }
            })
        });
        self.cross(&Side::OUTSIDE, &self.side, base, watch.as_ref())
    }

    /// Lets a result out, to another scope or outside.
    pub(crate) fn let_out(&self, tensor: AnyTensor, to: &Side, watch: Option<&Watch>) -> AnyTensor {
        let dtype = tensor.dtype();
        if !self.side.holds(dtype) {
            if tensor.is_tracked() {
                self.refuse(AmpError::CapturedOutput { dtype });
            }
            return tensor.cast(FloatDType::F32);
        }
        // A gradient that comes from nowhere is of a parameter that was not cast.
        if is_half(dtype) && tensor.is_tracked() && !locked(&self.notes).has_gradients {
            let attached = self.amp.is_attached();
            self.refuse(AmpError::NotAttached { dtype, attached });
        }
        if let Some(dry) = &self.dry {
            dry.leaves(&tensor, &self.amp, to.is_outside());
        } else if watch.is_some() && to.is_outside() {
            SCALES_GRADIENTS
                .set(SCALES_GRADIENTS.get() || (tensor.is_tracked() && self.has_scale()));
            warn_of_a_loss(&tensor);
        }
        self.cross(&self.side, to, tensor, watch)
    }

    /// Lets a tensor out for a region in f32, which comes back.
    pub(crate) fn widen(&self, tensor: AnyTensor) -> AnyTensor {
        match self.side.holds(tensor.dtype()) {
            true => {
                // What is carried out of a part in f32 has the scale.
                let notes = self.notes.clone();
                let returns = || Watch::of_arrival(move || locked(&notes).awaits_gradients = false);
                let watch = self.watch_island(&tensor, EventPlace::Return);
                let watch = watch.unwrap_or_else(returns);
                self.cross(&self.side, &Side::OUTSIDE, tensor, Some(&watch))
            }
            false => tensor.cast(FloatDType::F32),
        }
    }

    /// The first refusal counts.
    pub(crate) fn refuse(&self, error: AmpError) {
        locked(&self.notes).refused.get_or_insert(error);
    }

    pub(crate) fn take_refused(&self) -> Option<AmpError> {
        locked(&self.notes).refused.take()
    }
}

/// A gradient has come to a parameter of a scope into which none came back.
fn warn_of_a_leak(path: &str, device: &Device) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if can_watch(device) {
            warn!(
                "the gradient of `{path}` lacks the loss scale, and is too small by it: a tensor left `autocast` by a cast of its own, and not as what the \
                 closure returns. Return it, or cast it in `in_f32`; `amp.check` finds such tensors"
            );
        }
    });
}

/// A scalar cannot carry the loss scale: its gradient starts at 1 and is multiplied beyond f16 at once.
fn warn_of_a_loss(tensor: &AnyTensor) {
    static SAID: Once = Once::new();
    let dtype = tensor.dtype();
    if is_half(dtype) && tensor.is_tracked() && tensor.shape().num_elements() == 1 {
        SAID.call_once(|| {
            warn!(
                "`autocast` returns a single {dtype:?} value that requires gradients: if it is a loss, take it outside, in f32. Reduced \
                 in half precision it loses digits, and its gradient times the loss scale overflows"
            );
        });
    }
}
