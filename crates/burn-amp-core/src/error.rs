mod border_fault;

pub use border_fault::BorderFault;
use border_fault::not_attached;

use burn::tensor::DType;
use burn_amp_kernels::{ServerError, UnsupportedDType};
use std::convert::Infallible;
use thiserror::Error;

/// The failures of this crate. One type for all of them.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AmpError {
    /// A setting is outside its range.
    #[error("`{field}` is {value}, but must be {allowed}")]
    InvalidValue {
        /// The name of the refused field, as written in the code.
        field: &'static str,
        /// The refused value, printed.
        value: String,
        /// The allowed range, in words.
        allowed: String,
    },

    /// Gradients overflow, and too many steps in a row were skipped; or the loss scale cannot go lower and
    /// [`raise_error_at_min_scale`](crate::GradScalerConfig::raise_error_at_min_scale) is set.
    ///
    /// The step was counted as skipped. Parameters, optimizer state and loss scale are as they were.
    #[error(
        "loss scale exhausted: gradients still overflow at loss scale {} after {skips} skipped steps in a row; \
         the first parameter whose gradient overflows is `{parameter}`. Possible causes: an operation inside `autocast` overflows: put it into \
         `in_f32`; the loss is multiplied by a scale of your own, or by a second `GradScaler`, beside that of `autocast`; inputs, loss or \
         parameters hold an infinity or a NaN; the learning rate is too high",
        short((*scale).into())
    )]
    LossScaleExhausted {
        /// The loss scale at which the gradients overflowed.
        scale: f32,
        /// Skipped steps, dropped micro-batches or skipped windows in a row, this one included.
        skips: u64,
        /// The path of the first parameter, in the module's order, whose gradient overflows.
        parameter: String,
    },

    /// The gradient of the loss was infinite or NaN in too many steps in a row. The loss scale is not the cause.
    ///
    /// The step was counted as skipped. Parameters, optimizer state and loss scale are as they were.
    #[error(
        "{}: {skips} steps in a row were skipped. The loss scale is not the cause. {}{}. `amp.check` runs one loss, and `audit` (feature `report`) \
         says which layer it is",
        if *output_finite { "the loss, or its gradient, is infinite or NaN" } else { "the model's output is infinite or NaN" },
        if *output_finite {
            "Look at the inputs, the learning rate and the loss"
        } else {
            "Inputs or parameters hold an infinity or a NaN, or a layer exceeds 65504, the largest value of f16 (a mask of -1e9, a sum over \
             many values): run that layer `in_f32`"
        },
        named(parameter.as_deref(), last_read.as_deref())
    )]
    LossNotFinite {
        /// Skipped steps in a row, this one included.
        skips: u64,
        /// True if the output of the model, where it left half precision, was finite.
        output_finite: bool,
        /// The path of the first parameter that is infinite or NaN itself; none if all are finite, or no module was at hand.
        parameter: Option<String>,
        /// The path of the parameter that was read last in a scope.
        last_read: Option<String>,
    },

    /// Gradients were infinite or NaN in too many steps in a row, and every scope of `autocast` had given finite ones: nobody knows the cause.
    ///
    /// The step was counted as skipped. Parameters, optimizer state and loss scale are as they were.
    #[error(
        "the gradient of `{parameter}` is infinite or NaN, although all gradients that `autocast` gave are finite: {skips} steps in a row were \
         skipped. It became so outside: in a layer or a penalty that is computed in f32 outside of all scopes (the root of a norm that is 0), in \
         code that changes gradients, or on another rank before they were summed. The loss scale stays where it is"
    )]
    UnknownCause {
        /// Skipped steps in a row, those for a bad loss and this one included.
        skips: u64,
        /// The path of the first parameter, in the module's order, whose gradient is infinite or NaN.
        parameter: String,
    },

    /// The ranks of a training in several processes cannot go on together: one has failed or ended, they do not agree on what they train, or they
    /// cannot be reached. The step was not made, on any rank.
    #[error("{}{reason}", rank.map_or("the other ranks are gone: ".to_string(), |rank| format!("rank {rank} of the training stops it: ")))]
    Ranks {
        /// The rank that is the reason; none where the ranks cannot be reached.
        rank: Option<usize>,
        /// Its reason: the message of its error, or that it has ended.
        reason: String,
    },

    /// A step cannot be captured, because a replay would repeat what was true when it was captured. Model and optimizer are as they were.
    #[error("the step cannot be captured: {reason}")]
    CannotCapture {
        /// The obstacle.
        reason: String,
    },

    /// A [hook](crate::step::hook::Hook), a guard for example, rejected too many steps in a row: more than
    /// [`max_consecutive_skips`](crate::GradScalerConfig::max_consecutive_skips).
    ///
    /// The step was counted as guarded. Parameters, optimizer state and loss scale are as they were.
    #[error(
        "the hook `{hook}` rejected {steps} steps in a row, the last because {reason}. Look at the inputs, the learning rate and the loss, \
         or raise the hook's threshold"
    )]
    AlwaysGuarded {
        /// The name of the hook.
        hook: String,
        /// Steps rejected in a row, this one included.
        steps: u64,
        /// The hook's reason for the last one.
        reason: String,
    },

    /// Gradients were given to `scaled`, but no loss was scaled. Nothing was changed.
    ///
    /// PyTorch asserts the same: "Attempted unscale_ but _scale is None".
    #[error(
        "no loss was scaled since the last `update`, so these gradients are not scaled: write \
         `scaler.scaled(GradientsParams::from_grads(scaler.scale(loss).backward(), &model))`, or \
         `scaler.backward(loss, &model)`. Gradients of a plain loss go to `ScaledOptimizer::step` as they are"
    )]
    LossNotScaled,

    /// A tensor met the border of half precision in a way that would lose the loss scale, or values.
    #[error("{}", what.message(parameter.as_deref().unwrap_or_default(), *dtype))]
    Border {
        /// The way.
        what: BorderFault,
        /// The path of a parameter that it is about, or that was read last; none if there is none.
        parameter: Option<String>,
        /// The dtype of the tensor, or of the scope.
        dtype: DType,
    },

    /// Gradients pass through scopes of two handles, and an optimizer moves the loss scale of one.
    #[error(
        "gradients pass through `autocast` of two `MixedPrecision`s. Each has a loss scale of its own, and this one's optimizer does not \
         move the other's: where that is too high, every step is skipped. Make one `MixedPrecision`, and give clones of it to all models and \
         optimizers of a loss"
    )]
    TwoPrecisions,

    /// A dry run, or a `Learner`'s first step, opened no scope of its `MixedPrecision`: it ran in f32.
    #[error(
        "the loss was computed, in whole or in part, without `autocast` of this `MixedPrecision`: in a loop call \
         `amp.autocast(input, |x| model.forward(x))` on this one or a clone of it; in a model that a `Learner` trains call the free `autocast`, and \
         check it by `amp.check_in_learner(..)`"
    )]
    NoScope,

    /// A dry run found gradients that are infinite or NaN at every loss scale.
    #[error(
        "the gradient of `{parameter}` is infinite or NaN at every loss scale: the inputs, the loss or the forward pass overflow, \
         or inside `autocast` a matrix product combines two dtypes. Run the region that overflows `in_f32`, or try bf16; give a captured tensor to \
         `amp.cast`"
    )]
    GradientsNotFinite {
        /// The path of the first such parameter.
        parameter: String,
    },

    /// A dry run found a loss that is far from the same loss in f32, and so are the tensors that leave `autocast`.
    #[error(
        "the loss is {} in {dtype:?} and {} in f32, and what leaves `autocast` is {} off: an operation inside overflows or rounds too coarsely for its numbers \
         (a norm, a square or a sum by hand), which goes into `in_f32`, or two dtypes meet on a device that does not refuse them: a tensor that is captured or \
         made inside goes through `amp.cast(tensor)`, a layer that holds f32 tensors into `in_f32`, a model through `amp.attach(model)`",
        short(*half), short(*full), share(*outputs)
    )]
    FarFromF32 {
        /// The half precision.
        dtype: DType,
        /// The loss in half precision.
        half: f64,
        /// The loss in f32.
        full: f64,
        /// The distance of the scopes' outputs from the same in f32: the norm of the difference over the norm in f32.
        outputs: f64,
    },

    /// A dry run found only gradients of zero, or none.
    #[error(
        "{}: the loss does not depend on the parameters, the model is not on an autodiff device, or its parameters are frozen (attach low-rank \
         adapters before `MixedPrecision`: Burn drops adapters that come after it, and freezes the rest)",
        if *gradients == 0 { "no parameter has a gradient" } else { "all gradients are zero" }
    )]
    NoGradients {
        /// The number of gradients, all zero.
        gradients: usize,
    },

    /// A dry run found gradients that change with the loss scale.
    #[error(
        "{differ} of {values} gradient values of `{parameter}` change with the loss scale: a tensor enters or leaves `autocast` \
         without a scaled cast. Return it from the closure rather than carry it out, take captured tensors in with \
         `amp.cast(tensor)`, use `in_f32` in place of `cast` by hand"
    )]
    BorderLeak {
        /// The path of the parameter with the most such values.
        parameter: String,
        /// The number of values that differ.
        differ: usize,
        /// The number of values.
        values: usize,
    },

    /// The base of a low-rank adapter has gradients, and the adapter casts it by hand.
    #[error(
        "parameter `{parameter}` requires gradients and has the reparameterization `{name}`, so its gradient would \
         keep the loss scale. Freeze the base, or remove the adapter"
    )]
    UnfrozenBase {
        /// The path of the parameter.
        parameter: String,
        /// The name of its reparameterization.
        name: String,
    },

    /// The optimizer takes gradients in the parameter's dtype only, and the unscaled gradient is of another. In a dry run: a parameter's gradient is
    /// narrower than the parameter.
    ///
    /// Nothing was changed.
    #[error(
        "parameter `{parameter}` is {parameter_dtype:?} but its unscaled gradient is {gradient_dtype:?}{}",
        match gradient_dtype.size() < parameter_dtype.size() {
            true => format!(": it met half precision without the cast of `autocast`, because {}", not_attached(true)),
            false => ", which the optimizer cannot combine: keep the parameter in f32 and compute in half precision with `MixedPrecision`, keep f32 \
                      copies of it with `MasterWeights`, or round gradients to the parameter's dtype with `parameter_dtype_gradients`"
                .to_string(),
        }
    )]
    HalfPrecisionParameter {
        /// The path of the parameter.
        parameter: String,
        /// The parameter's dtype.
        parameter_dtype: DType,
        /// The dtype of its gradient after unscaling.
        gradient_dtype: DType,
    },

    /// A gradient does not have its parameter's shape. Nothing was changed.
    #[error(
        "the gradient of `{parameter}` has {}, but the parameter has shape {expected:?}",
        found.as_ref().map_or("another rank".to_string(), |shape| format!("shape {shape:?}"))
    )]
    GradientShape {
        /// The path of the parameter.
        parameter: String,
        /// The parameter's shape.
        expected: Vec<usize>,
        /// The gradient's shape; none if it has another rank.
        found: Option<Vec<usize>>,
    },

    /// A parameter would be stepped twice without an `update` between. Nothing was changed.
    ///
    /// PyTorch: "step() has already been called since the last update()".
    #[error(
        "`step` has already been called for parameter `{parameter}` since the last `update`. Call `GradScaler::update` once after \
         the steps of an iteration"
    )]
    UpdateMissing {
        /// The path of the first parameter of the refused step.
        parameter: String,
    },

    /// The thread of a `PipelinedOptimizer` has ended, or could not be started. Steps that it had
    /// not done were refused; the module is that of the last one that was received.
    #[error(
        "the optimizer's thread has ended: {reason}. Go on from the last record, with a new `PipelinedOptimizer`"
    )]
    OptimizerThread {
        /// The message of its panic, or of the system.
        reason: String,
    },

    /// Burn ended a `Learner`'s run: its data, a checkpoint or a worker failed.
    #[error("the run has ended before its last epoch: {reason}")]
    RunFailed {
        /// Burn's message.
        reason: String,
    },

    /// A `PipelinedOptimizer` was given a module other than the one that its last step returned. Nothing was
    /// changed.
    #[error(
        "parameter `{parameter}` {reason}, but the optimizer continues from its own f32 copy of the module that its last step returned: \
         call `reload(&module)` to continue from this module"
    )]
    OtherModule {
        /// The path of the parameter, or a name for all of them.
        parameter: String,
        /// The difference.
        reason: String,
    },

    /// A file could not be read or written.
    #[error("{origin}: {reason}")]
    RecordIo {
        /// The file, or "memory".
        origin: String,
        /// The system's message.
        reason: String,
    },

    /// A file is truncated or was changed, or it is not a record. Nothing was loaded.
    #[error("{origin} is damaged or not a record: {reason}")]
    DamagedRecord {
        /// The file, or "memory".
        origin: String,
        /// The contradiction.
        reason: String,
    },

    /// A record of another kind, of another optimizer or of another model. Nothing was loaded.
    #[error("{origin} does not fit: {reason}")]
    ForeignRecord {
        /// The file, or "memory".
        origin: String,
        /// The difference.
        reason: String,
    },

    /// A record that a later release of this crate has written. Nothing was loaded.
    #[error(
        "{origin} has record version {found}, this release reads up to {supported}: update burn-amp to load it"
    )]
    NewerRecord {
        /// The file, or "memory".
        origin: String,
        /// The record's version.
        found: u64,
        /// The newest version that this release reads.
        supported: u64,
    },

    /// A `GradScaler::state_dict` without any value, as a disabled scaler gives it. Nothing was loaded.
    #[error(
        "the source state is empty, possibly because it was saved from a disabled instance of GradScaler"
    )]
    EmptyState,

    /// A `GradScaler::state_dict` lacks a value, or the text is none. Nothing was loaded.
    #[error("not the state of a GradScaler: {reason}")]
    InvalidState {
        /// The fault.
        reason: String,
    },

    /// A device cannot compute in a dtype. WGSL has no bf16, and f16 only where the device has the feature `shader-f16`.
    #[error(transparent)]
    UnsupportedDType(#[from] UnsupportedDType),

    /// The server of a remote device does not know this crate's operations, or does not answer. The message says how to start one that does.
    #[error(transparent)]
    RemoteServer(#[from] ServerError),

    /// A device does not refuse two dtypes in one operation, so that mistakes which are an error elsewhere train there, on garbage.
    #[error(
        "Burn refuses no operation on {dtype:?} and F32 on {device}: it computes garbage there without a word, where a mask is captured or a layer holds \
         f32 tensors. Turn on Burn's feature `fusion`, which refuses such operations, but for products of matrices: burn-amp's features `cuda`, `rocm`, `wgpu`, `vulkan`, `metal`, `webgpu` \
         and `cpu` do so, `cubecl` does not. To train without it, call `MixedPrecision::allow_unchecked_dtypes`, and run `amp.check` on each new model"
    )]
    UncheckedDTypes {
        /// The half precision.
        dtype: DType,
        /// The device, as Burn names it.
        device: String,
    },
}

/// The error of a conversion that cannot fail.
impl From<Infallible> for AmpError {
    fn from(error: Infallible) -> Self {
        match error {}
    }
}

/// For types of one's own: a [`ModuleOptim`](crate::ModuleOptim), a [`Hook`](crate::hook::Hook), a [`Rule`](crate::schedule::Rule).
impl AmpError {
    /// The error for a number that a setting cannot have.
    pub fn invalid(field: &'static str, value: impl Into<f64>, allowed: impl Into<String>) -> Self {
        Self::refused(field, short(value.into()), allowed)
    }

    /// The error for a value that is no number, and that a setting cannot have.
    pub fn refused(
        field: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let (value, allowed) = (value.into(), allowed.into());
        Self::InvalidValue {
            field,
            value,
            allowed,
        }
    }

    /// The error for a parameter that is not that of the last step.
    pub fn other_module(parameter: impl Into<String>, reason: impl Into<String>) -> Self {
        let (parameter, reason) = (parameter.into(), reason.into());
        Self::OtherModule { parameter, reason }
    }

    /// The error for a tensor at the border of half precision.
    pub fn border(what: BorderFault, parameter: Option<&str>, dtype: DType) -> Self {
        let parameter = parameter.map(String::from);
        Self::Border {
            what,
            parameter,
            dtype,
        }
    }

    /// The error for a record that cannot be read or written.
    pub fn record_io(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        let (origin, reason) = (origin.into(), reason.into());
        Self::RecordIo { origin, reason }
    }

    /// The error for a record that no run has written.
    pub fn damaged(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        let (origin, reason) = (origin.into(), reason.into());
        Self::DamagedRecord { origin, reason }
    }

    /// The error for a record that is of something else.
    pub fn foreign(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        let (origin, reason) = (origin.into(), reason.into());
        Self::ForeignRecord { origin, reason }
    }
}

/// Names where a loss became infinite or NaN, as far as it is known.
fn named(parameter: Option<&str>, last_read: Option<&str>) -> String {
    match (parameter, last_read) {
        (Some(path), _) => format!(
            ". The parameter `{path}` itself is infinite or NaN: go back to a record of before"
        ),
        (None, Some(path)) => format!(". The parameter read last in `autocast` is `{path}`"),
        (None, None) => String::new(),
    }
}

/// A share in words.
fn share(value: f64) -> String {
    match value.is_finite() {
        true => format!("{:.0} %", value * 100.0),
        false => "infinitely".to_string(),
    }
}

/// Refuses a setting that is not `inside` its range.
pub fn in_range(
    field: &'static str,
    value: f64,
    inside: bool,
    allowed: &str,
) -> Result<(), AmpError> {
    match inside {
        true => Ok(()),
        false => Err(AmpError::invalid(field, value, allowed)),
    }
}

/// The value, or a panic with the error's message, at the line of the program that called.
#[track_caller]
pub fn or_panic<T>(result: Result<T, impl std::fmt::Display>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// A number without the three hundred digits that `Display` gives the extreme ones.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&magnitude) {
        true => value.to_string(),
        false => format!("{value:e}"),
    }
}

/// A step that failed, with the module that it was to change.
///
/// Returned by `try_step`, `try_flush`, `step_multi`, `PipelinedOptimizer::synchronize` and `into_inner`, and `LearnerExt::launch`, so
/// that no clone is needed to keep the model after a failure. `?` turns it into an [`AmpError`], and drops the module.
#[derive(Clone, Error)]
#[error("{error}")]
pub struct StepError<M> {
    /// The module: `*failed.module`. As it was given; where a `PipelinedOptimizer` is synchronized, with its newest parameters; of a run, as far as it was
    /// trained. Boxed, so that a `Result` of a step stays small.
    pub module: Box<M>,
    /// The failure.
    pub error: AmpError,
}

impl<M> StepError<M> {
    /// The failure, with the module as it was given.
    pub fn new(module: M, error: AmpError) -> Self {
        let module = Box::new(module);
        Self { module, error }
    }

    /// The module of a step, and whether the step failed.
    pub fn split(stepped: Result<M, Self>) -> (M, Result<(), AmpError>) {
        match stepped {
            Ok(module) => (module, Ok(())),
            Err(Self { module, error }) => (*module, Err(error)),
        }
    }

    /// The module of a step, or what has failed, with it.
    pub fn join(module: M, stepped: Result<(), AmpError>) -> Result<M, Self> {
        match stepped {
            Ok(()) => Ok(module),
            Err(error) => Err(Self::new(module, error)),
        }
    }
}

/// Leaves out the module, which may not print.
impl<M> std::fmt::Debug for StepError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<M> From<StepError<M>> for AmpError {
    fn from(error: StepError<M>) -> Self {
        error.error
    }
}
