//! The border of half precision: a scope that is open, and the casts over its border.

use burn::module::ParamId;
use burn::tensor::{DType, Device, FloatDType};
use burn_amp_kernels::{Watch, can_watch};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

use super::dry_run::DryRun;
use super::mixed_precision::MixedPrecision;
use crate::error::{AmpError, BorderFault};
use crate::scale::border_events::{EventPlace, OpenRegion};
use crate::scale::region::{Factor, Region};
use crate::values::{AnyTensor, is_half};
use crate::{lock::locked, scale::device_step::DeviceStep};

/// The factor between two sides, and its inverse, must be normal in f32, or gradients lose digits.
const MAX_EXPONENT: u32 = 126;
const LARGEST: f64 = f64::from_bits((1023 + MAX_EXPONENT as u64) << 52);

thread_local! {
    /// Set where gradients that come back to this thread's scopes are multiplied there, and no optimizer of theirs has tested any since.
    pub(crate) static SCALES_GRADIENTS: Cell<bool> = const { Cell::new(false) };
}

/// A scope that is open, or a region of one.
#[derive(Clone)]
pub(super) struct OpenScope {
    pub(super) amp: MixedPrecision,
    pub(super) side: Side,
    /// Its place in the order of the border events.
    pub(super) number: u64,
    /// The innermost region whose factor moves.
    region: Option<Arc<OpenRegion>>,
    /// The product of the factors of its regions: gradients are multiplied by it beside the loss scale.
    regions: f64,
    /// Set where its gradients come to a step, which looks for the cause of an overflow: they are kept where they leave half precision.
    pub(super) is_step: bool,
    pub(super) dry: Option<Arc<DryRun>>,
    pub(super) notes: Arc<Mutex<ScopeNotes>>,
}

/// The history of a scope, that of its regions included.
#[derive(Default)]
pub(super) struct ScopeNotes {
    /// The first use of it that was refused.
    pub(super) refused: Option<AmpError>,
    /// The parameter that was read last, to say where a dtype clashed.
    pub(super) last_read: Option<Arc<str>>,
    /// Set once a tensor that requires gradients has come in, parameters included.
    has_gradients: bool,
    /// Set while gradients are to come back into it through a watch, and none has so far.
    awaits_gradients: bool,
    /// Set once the closure has returned.
    pub(super) is_closed: bool,
    /// The notes of the enclosing scope, if results go back to it in half precision.
    pub(super) outer: Option<Arc<Mutex<Self>>>,
}

impl ScopeNotes {
    /// Refuses a backward pass that comes to this parameter while a closure runs: that of this scope, or of the next around it.
    fn refuse_backward(notes: &Mutex<Self>, parameter: &str, dtype: DType) -> bool {
        let outer = {
            let mut notes = locked(notes);
            if !notes.is_closed {
                let error = AmpError::border(BorderFault::Backward, Some(parameter), dtype);
                notes.refused.get_or_insert(error);
                return true;
            }
            notes.outer.clone()
        };
        outer.is_some_and(|outer| Self::refuse_backward(&outer, parameter, dtype))
    }
}

/// One side of a border: the dtype of its tensors, and the multiple of their gradients.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) dtype: FloatDType,
    pub(super) scale: f64,
    /// A further factor, if only the device knows it.
    device_step: Option<Arc<DeviceStep>>,
}

impl Side {
    pub(super) const OUTSIDE: Self = Self {
        dtype: FloatDType::F32,
        scale: 1.0,
        device_step: None,
    };

    fn is_outside(&self) -> bool {
        self.dtype == FloatDType::F32 && self.scale == 1.0 && self.device_step.is_none()
    }

    /// Returns the factor of gradients that come back from `to`.
    fn factor(&self, to: &Self) -> burn_amp_kernels::Factor {
        let ratio = self.scale / to.scale;
        let scale = match (&self.device_step, &to.device_step) {
            (None, None) => return ratio.into(),
            (Some(from), Some(to)) if Arc::ptr_eq(from, to) => return ratio.into(),
            (Some(from), None) => from.factor(),
            (None, Some(to)) => to.inverse(),
            (Some(from), Some(to)) => from.factor() * to.inverse(),
        };
        burn_amp_kernels::Factor::on_device(ratio, scale)
    }
}

impl OpenScope {
    /// Opens a scope, in the regions that are around it.
    pub(crate) fn new(amp: &MixedPrecision, dry: Option<Arc<DryRun>>, regions: &[Region]) -> Self {
        let is_step = dry.is_none() && amp.is_scaled();
        let opened = amp.live().open(is_step);
        let (dtype, scale) = match &dry {
            Some(dry) => dry.side_of(amp),
            None => (amp.dtype(), opened.scale),
        };
        let open = Self {
            amp: amp.clone(),
            side: Side {
                dtype,
                scale,
                device_step: opened.device_step,
            },
            number: opened.number,
            region: None,
            regions: 1.0,
            is_step,
            dry,
            notes: Arc::default(),
        };
        (regions.iter()).fold(open, |open, region| open.inside(region))
    }

    /// Opens a region inside this, with a factor of its own.
    pub(crate) fn inside(&self, wanted: &Region) -> Self {
        let mut region = self.region.clone();
        let factor = match (&wanted.factor, &wanted.name) {
            (Factor::Fixed(exponent), _) => self.power_of_two(*exponent),
            (Factor::Moving(wanted), Some(name))
                if self.amp.is_scaled() && wanted.config().enabled =>
            {
                // Of the steps in flight none has opened it, and each ends an iteration.
                self.amp.live().resolve(true);
                let regions = &self.amp.live().regions;
                let factor = regions.enter(name, wanted, self.dry.is_some()).into();
                region = Some(Arc::new(OpenRegion {
                    name: name.clone(),
                    factor,
                    outer_factor: self.regions,
                }));
                factor
            }
            _ => 1.0,
        };
        let limited = |value: f64| value.clamp(1.0 / LARGEST, LARGEST);
        let mut side = self.side.clone();
        if side.dtype != FloatDType::F32 {
            side.scale = limited(side.scale * limited(factor));
        }
        Self {
            side,
            region,
            regions: limited(self.regions * factor),
            ..self.clone()
        }
    }

    /// Returns 2^exponent; 1 if that is refused.
    fn power_of_two(&self, exponent: i32) -> f64 {
        if exponent.unsigned_abs() > MAX_EXPONENT {
            let allowed = format!("between -{MAX_EXPONENT} and {MAX_EXPONENT}");
            self.refuse(AmpError::invalid("power_of_two", exponent, allowed));
            return 1.0;
        }
        f64::from(exponent).exp2()
    }

    /// Says whether gradients are multiplied by another number than 1.
    fn has_scale(&self) -> bool {
        self.side.scale != 1.0 || (self.side.device_step.is_some() && self.amp.loss_scale() != 1.0)
    }

    /// Measures the gradients that come to the scope, and the output too: an overflow in the forward pass is not caused by the scale.
    pub(super) fn watch_scope(&self) -> Watch {
        let (amp, notes) = (self.amp.clone(), self.notes.clone());
        let place = EventPlace::Scope(self.number, self.region.clone());
        locked(&notes).awaits_gradients = self.has_scale();
        Watch::new(move |event| {
            locked(&notes).awaits_gradients = false;
            amp.live().add_event(place.clone(), event);
        })
    }

    /// Measures the gradients that cross the border of a region whose factor moves: where they leave it, and where they come to it.
    pub(super) fn watch_region(&self, outer: &Self) -> [Option<Watch>; 2] {
        let enclosing = outer.region.clone();
        let is_enclosing = |region: &_| (enclosing.iter()).any(|outer| Arc::ptr_eq(outer, region));
        let region = self.region.clone().filter(|region| !is_enclosing(region));
        let Some(region) = region.filter(|_| self.is_step) else {
            return [None, None];
        };
        let departure = EventPlace::Departure(region.clone(), enclosing.clone());
        [departure, EventPlace::Arrival(region, enclosing)].map(|place| {
            let amp = self.amp.clone();
            let add = move |event| amp.live().add_event(place.clone(), event);
            Some(Watch::of_gradient(add))
        })
    }

    /// Notes that a tensor has come in.
    pub(super) fn note(&self, tensor: &AnyTensor) {
        if tensor.is_tracked() {
            locked(&self.notes).has_gradients = true;
        }
    }

    /// Keeps the gradients that go from half precision to f32.
    fn watch_leaving(&self) -> Option<Watch> {
        let amp = self.is_step.then(|| self.amp.clone())?;
        let place = EventPlace::Left(self.number, self.region.clone());
        let keep = move |gradient| amp.live().keep_gradient(place.clone(), None, gradient);
        Some(Watch::of_passing(keep))
    }

    /// Takes a tensor from one side to another, one of which is that of this scope. The watch is not asked in a dry run, which measures by
    /// itself.
    fn cross(&self, from: &Side, to: &Side, tensor: AnyTensor, watch: Option<&Watch>) -> AnyTensor {
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

    /// Takes a tensor in from another side; from outside, if it is not in the dtype of that one. A gradient that leaves half
    /// precision there is kept for the cause of a skip, if this `keeps` any and no other watch looks at it.
    pub(super) fn take(
        &self,
        from: &Side,
        tensor: AnyTensor,
        watch: Option<&Watch>,
        keeps: bool,
    ) -> AnyTensor {
        let dtype = tensor.dtype();
        let is_own = dtype == from.dtype.into();
        let from = if is_own { from } else { &Side::OUTSIDE };
        let is_outside = from.is_outside();
        // A model that was not attached has asked no device whether two dtypes may meet there.
        if is_outside && let Err(error) = self.amp.check_once(tensor.device()) {
            self.refuse(error);
        }
        let mut left = None;
        if tensor.is_tracked() {
            locked(&self.notes).has_gradients = true;
            if is_outside && is_half(dtype) {
                // On its way back its gradient would be rounded to half precision without the scale.
                self.refuse(AmpError::border(BorderFault::Input, None, dtype));
            }
            if is_outside && keeps {
                left = self.watch_leaving();
            }
        }
        let watch = watch.filter(|_| is_own).or(left.as_ref());
        self.cross(from, &self.side, tensor, watch)
    }

    /// Takes a tensor in that the closure has captured or made, unless it is of the scope already; see [`take`](Self::take).
    pub(super) fn take_captured(&self, tensor: AnyTensor, keeps: bool) -> AnyTensor {
        match tensor.dtype() == self.side.dtype.into() {
            true => tensor,
            false => self.take(&Side::OUTSIDE, tensor, None, keeps),
        }
    }

    /// Takes a parameter in. While the closure runs, its gradient comes from a `backward` inside, which lacks the loss scale.
    pub(super) fn take_parameter(
        &self,
        path: &Arc<str>,
        id: ParamId,
        base: AnyTensor,
    ) -> AnyTensor {
        let (dtype, is_tracked) = (base.dtype(), base.is_tracked());
        // Of Flex32 nobody knows how many digits a device keeps.
        if is_tracked && (is_half(dtype) || dtype == DType::Flex32) {
            self.refuse(AmpError::border(BorderFault::Parameter, Some(path), dtype));
        }
        {
            let mut notes = locked(&self.notes);
            notes.last_read = Some(path.clone());
            notes.has_gradients |= is_tracked;
        }
        match &self.dry {
            Some(dry) => dry.reads(path, &self.amp, self.side.dtype),
            // Of others, such as those of validation, no gradient comes.
            None if is_tracked && self.amp.live().has_regions() => {
                let region = self.region.as_ref().map(|region| &region.name);
                self.amp.live().regions.lock().read_in(region, path);
            }
            _ => {}
        }
        let (is_scaled, is_step) = (self.has_scale(), self.is_step);
        let mut watch = None;
        if is_tracked && (is_scaled || is_step) {
            let place = EventPlace::Parameter(self.number, self.region.clone());
            let (notes, path, amp) = (self.notes.clone(), path.clone(), self.amp.clone());
            let dtype = self.side.dtype.into();
            watch = Some(Watch::of_passing(move |gradient| {
                let (awaits_gradients, is_over) = {
                    let notes = locked(&notes);
                    let is_over = notes.is_closed && notes.outer.is_none();
                    (notes.awaits_gradients, is_over)
                };
                let is_inside = is_scaled && !is_over;
                if is_inside && ScopeNotes::refuse_backward(&notes, &path, dtype) {
                    return;
                }
                if is_step {
                    if awaits_gradients {
                        warn_of_a_leak(&path, &gradient.device());
                    }
                    (amp.live()).keep_gradient(place.clone(), Some(id), gradient);
                }
            }));
        }
        self.cross(&Side::OUTSIDE, &self.side, base, watch.as_ref())
    }

    /// Lets a result out, to another scope or outside.
    pub(super) fn let_out(&self, tensor: AnyTensor, to: &Side, watch: Option<&Watch>) -> AnyTensor {
        let dtype = tensor.dtype();
        let is_tracked = tensor.is_tracked();
        if dtype != self.side.dtype.into() {
            if is_tracked {
                self.refuse(AmpError::border(BorderFault::Output, None, dtype));
            }
            return tensor.cast(FloatDType::F32);
        }
        let is_narrow = is_tracked && dtype != DType::F32;
        // A gradient that comes from nowhere is of a parameter that was not cast.
        if is_narrow && !locked(&self.notes).has_gradients {
            let attached = self.amp.is_attached();
            let what = BorderFault::NotAttached { attached };
            self.refuse(AmpError::border(what, None, dtype));
        }
        if let Some(dry) = &self.dry {
            dry.leaves(&tensor, &self.amp, to.is_outside());
        } else if watch.is_some() && to.is_outside() && is_tracked {
            if self.has_scale() {
                SCALES_GRADIENTS.set(true);
            }
            if is_narrow && tensor.shape().num_elements() == 1 {
                warn_of_a_loss(dtype);
            }
        }
        self.cross(&self.side, to, tensor, watch)
    }

    /// Lets a tensor out for a part in f32, which comes back. On GPUs its gradient is not kept: that would be one more launch, beside the operations that
    /// Fusion makes one kernel of.
    pub(super) fn widen(&self, tensor: AnyTensor) -> AnyTensor {
        if tensor.dtype() != self.side.dtype.into() {
            return tensor.cast(FloatDType::F32);
        }
        // A tensor that is carried out of the part has the scale.
        let notes = self.notes.clone();
        let returned = move || locked(&notes).awaits_gradients = false;
        let watch = match tensor.is_kept_for_nothing() && self.is_step {
            true => {
                let amp = self.amp.clone();
                let place = EventPlace::Return(self.number, self.region.clone());
                Watch::of_passing(move |gradient| {
                    returned();
                    amp.live().keep_gradient(place.clone(), None, gradient);
                })
            }
            false => Watch::of_arrival(returned),
        };
        self.cross(&self.side, &Side::OUTSIDE, tensor, Some(&watch))
    }

    /// Refuses a use of the scope. The first refusal counts.
    fn refuse(&self, error: AmpError) {
        locked(&self.notes).refused.get_or_insert(error);
    }
}

/// Says once that a gradient has come to a parameter of a scope into which none came back.
fn warn_of_a_leak(path: &str, device: &Device) {
    if can_watch(device) {
        warn_once!(
            "the gradient of `{path}` lacks the loss scale, and is too small by it: a tensor left `autocast` by a cast of its own, and not as what the \
             closure returns. Return it, or cast it in `in_f32`; `amp.check` finds such tensors"
        );
    }
}

/// Says once that a scalar cannot carry the loss scale: its gradient starts at 1 and is multiplied beyond f16 at once.
fn warn_of_a_loss(dtype: DType) {
    warn_once!(
        "`autocast` returns a single {dtype:?} value that requires gradients: if it is a loss, take it outside, in f32. Reduced \
         in half precision it loses digits, and its gradient times the loss scale overflows"
    );
}
