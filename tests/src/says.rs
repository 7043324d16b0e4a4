//! What messages say.

use crate::captured;
use burn_amp::AmpError;
use log::Level;
use std::fmt::Display;

/// The words of each error, in this place alone: what its `Debug` holds, and what its message says then.
const WORDS: &str = "
InvalidValue > but must be
LossScaleExhausted > loss scale exhausted > an operation inside `autocast` overflows: put it into `in_f32`
LossScaleExhausted > multiplied by a scale of your own > second `GradScaler`
LossNotFinite > steps in a row were skipped. The loss scale is not the cause > `amp.check` > `audit`
LossNotFinite .. output_finite: true > the loss, or its gradient, is infinite or NaN
LossNotFinite .. output_finite: false > the model's output is infinite or NaN > run that layer `in_f32`
LossNotFinite .. parameter: Some > itself is infinite or NaN
LossNotFinite .. parameter: None, last_read: Some > The parameter read last in `autocast` is
UnknownCause > another rank > The loss scale stays
Border { what: Input > `autocast` from outside > pass it in f32, or compute it inside
Border { what: Parameter > `to_full(model)` > `GradScaler` > `MasterWeights`
Border { what: Output > returns a > outside > `in_f32` > Return the half-precision tensor > `amp.attach(model)`
Border { what: NotAttached > `amp.cast(tensor)`
Border { what: NotAttached .. attached: true > another `MixedPrecision`
Border { what: NotAttached .. attached: false > not attached > amp.prepare(model, optim)
Border { what: Backward > return the output > take the loss outside
TwoPrecisions > two `MixedPrecision`s
Border { what: Thread > is f32 there > `scope.enter(|| ..)`
Border { what: Clash .. dtype: F16 > which computes in F16 > amp.cast(tensor) > `in_f32(x, |x| layer.forward(x))`
Border { what: Clash .. dtype: F16 > `Scope::enter` > A target > take the loss outside > `Param::map` > `amp.attach(model)` again
Border { what: Clash .. parameter: Some > the parameter read last is
Border { what: Clash { attached: true .. parameter: None, dtype: F16 > no parameter was read before it: this model was not attached
Border { what: Clash { attached: true .. parameter: None, dtype: F16 > another `MixedPrecision` > an f32 tensor of the program meets the input
Border { what: Clash { attached: false .. parameter: None, dtype: F16 > (no parameter was read: the model was not attached
Border { what: Clash .. dtype: F32 > meet outside half precision > carried out of the closure
Border { what: Clash .. F64 > f64 as it is > as f32
NoScope > free `autocast`
Border { what: Loss > take the loss of it in f32
GradientsNotFinite > infinite or NaN at every loss scale
FarFromF32 > the loss is > % off > in_f32
NoGradients > adapters
BorderLeak > change with the loss scale > `amp.cast(tensor)`
UnfrozenBase > Freeze the base
HalfPrecisionParameter .. parameter_dtype: F16, gradient_dtype: F32 > `MixedPrecision` > `MasterWeights` > `parameter_dtype_gradients`
GradientShape > but the parameter has shape
LossNotScaled > no loss was scaled since the last `update` > `scaler.backward(loss, &model)`
UpdateMissing > Call `GradScaler::update` once
Ranks { rank: Some > of the training stops it
Ranks { rank: None > the other ranks are gone
CannotCapture > the step cannot be captured
AlwaysGuarded > rejected > raise the hook's threshold
OptimizerThread > the optimizer's thread has ended > Go on from the last record
OtherModule > call `reload(&module)`
RunFailed > the run has ended before its last epoch
DamagedRecord > is damaged or not a record
NewerRecord > update burn-amp to load it
EmptyState > saved from a disabled instance
InvalidState > not the state of a GradScaler
ForeignRecord > does not fit
UncheckedDTypes > Burn's feature `fusion` > `cubecl` does not > `MixedPrecision::allow_unchecked_dtypes`
";

/// Asserts that a message, or an error's, has all of these parts.
#[track_caller]
pub fn says<const N: usize>(message: &(impl Display + ?Sized), parts: [&str; N]) {
    let message = message.to_string();
    for part in parts {
        assert!(message.contains(part), "no {part} in: {message}");
    }
}

/// Asserts that an error's `Debug` begins with this variant, and that its message has the variant's words, and all of these parts.
#[track_caller]
pub fn is_error<const N: usize>(error: &AmpError, variant: &str, parts: [&str; N]) {
    let found = format!("{error:?}");
    assert!(found.starts_with(variant), "no {variant}: {found}");
    for row in WORDS.trim().lines() {
        let mut cells = row.split(" > ");
        let mut kind = cells.next().unwrap().split(" .. ");
        if found.starts_with(kind.next().unwrap()) && kind.all(|part| found.contains(part)) {
            cells.for_each(|words| says(error, [words]));
        }
    }
    says(error, parts);
}

/// The only message that there is.
#[track_caller]
pub fn only(messages: &[String]) -> &str {
    let [message] = messages else {
        panic!("not one message: {messages:?}");
    };
    message
}

/// Asserts that an action warns of nothing.
#[track_caller]
pub fn no_warning(action: impl FnOnce()) {
    assert_eq!(captured(Level::Warn, action), [""; 0]);
}

/// Asserts that an action warns once, with a message that has all of these parts.
#[track_caller]
pub fn warns_once<const N: usize>(parts: [&str; N], action: impl FnOnce()) {
    says(only(&captured(Level::Warn, action)), parts);
}
