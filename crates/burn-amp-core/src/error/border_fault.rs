//! The faults at the border of half precision, in words.

use burn::tensor::DType;

/// The ways to cross the border of half precision, or not to cross it, that are refused: see [`AmpError::Border`](crate::AmpError::Border).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BorderFault {
    /// A half-precision tensor that requires gradients came into a scope from outside: its gradient would be rounded to half
    /// precision without the loss scale.
    Input,
    /// A half-precision parameter that requires gradients was read in a scope, or an f16 one is to be trained in a `Learner`.
    Parameter,
    /// A tensor that requires gradients and is not of the scope's dtype came out of a scope.
    Output,
    /// A tensor came out of a scope that requires gradients, and nothing that does has come in: no parameter of the scope's handle, and no input.
    ///
    /// So it comes from a tensor that the scope has not cast, whose gradient would be off by the loss scale. On a device that does not refuse two dtypes the
    /// value is garbage, too.
    NotAttached {
        /// True if a model was attached to the `MixedPrecision`.
        attached: bool,
    },
    /// `backward` was called inside the closure of `autocast`; the parameter is the first whose gradient came.
    Backward,
    /// A thread that was started inside a scope has panicked; the parameter was read last there.
    Thread,
    /// Burn refused to combine two dtypes inside a scope, or outside in a dry run, where the dtype is f32.
    Clash {
        /// True if a model was attached to the `MixedPrecision`.
        attached: bool,
        /// Burn's message.
        message: String,
    },
    /// A dry run gave a loss in half precision, which is too coarse for it.
    Loss,
}

impl BorderFault {
    pub(super) fn message(&self, parameter: &str, dtype: DType) -> String {
        match self {
            Self::Input => format!(
                "a {dtype:?} tensor that requires gradients came into `autocast` from outside, where its gradient is not scaled: pass it \
                 in f32, or compute it inside"
            ),
            Self::Parameter => format!(
                "parameter `{parameter}` is {dtype:?}: `autocast` needs f32 parameters (`to_full(model)`). To train half-precision \
                 parameters, scale the loss with `GradScaler` and keep f32 copies with `MasterWeights`"
            ),
            Self::Output => format!(
                "`autocast` returns a {dtype:?} tensor that requires gradients and is not in the scope's half precision: its gradient \
                 would be off by the loss scale. Return the half-precision tensor, or compute this one outside (a loss, a head in f32). \
                 Put a region that must be f32 into `in_f32`, which casts its result back. A model all of which runs in f32 inside was not attached: \
                 `amp.prepare(model, optim)` or `amp.attach(model)`"
            ),
            Self::NotAttached { attached } => format!(
                "`autocast` returns a {dtype:?} tensor that requires gradients, but no parameter of this `MixedPrecision` that does was read inside: {}. \
                 A tensor of your own that requires gradients goes in as an input, or by `amp.cast(tensor)`",
                not_attached(*attached)
            ),
            Self::Backward => format!(
                "the gradient of `{parameter}` was computed inside `autocast`, where it lacks the loss scale, and so is too small by that factor: \
                 return the output from the closure, take the loss outside, and call `backward` there"
            ),
            Self::Thread => format!(
                "a thread that was started inside `autocast` has panicked: its own message is above. A scope belongs to its thread, so `{parameter}` is \
                 f32 there, where it meets {dtype:?}. Take the scope along: `let scope = Scope::current();` before the thread starts, and \
                 `scope.enter(|| ..)` in it"
            ),
            Self::Clash { attached, message } => format!(
                "two dtypes meet {}. {}Burn says: {message}",
                clash(dtype, parameter, *attached),
                match message.contains("F64") {
                    true =>
                        "`autocast` leaves f64 as it is: pass such an input as f32, `input.cast(FloatDType::F32)`. ",
                    false => "",
                }
            ),
            Self::Loss => format!(
                "the loss is {dtype:?}: let the model's output leave `autocast`, and take the loss of it in f32"
            ),
        }
    }
}

/// Says where two dtypes meet, and what to do. The parameter is empty where none was read.
fn clash(dtype: DType, parameter: &str, attached: bool) -> String {
    if dtype == DType::F32 {
        return "outside half precision: a tensor was carried out of the closure of `autocast`, or cast by hand. Return it from the closure, \
                which casts it to f32"
            .to_string();
    }
    let last = match (parameter, attached) {
        (path, _) if !path.is_empty() => format!("the parameter read last is `{path}`"),
        (_, true) => format!(
            "no parameter was read before it: {}; or an f32 tensor of the program meets the input",
            not_attached(true)
        ),
        (_, false) => format!("no parameter was read: {}", not_attached(false)),
    };
    format!(
        "inside `autocast`, which computes in {dtype:?} ({last}). A layer that holds f32 tensors of its own (BatchNorm, Lstm, Gru, positional \
         encodings) goes into `in_f32(x, |x| layer.forward(x))`. A tensor that is captured or made inside goes into `amp.cast(tensor)`, \
         in a model without `amp` `tensor.cast(x.dtype())`. A target, or a weight of the loss: take the loss outside. Work on other threads goes into `Scope::enter`. A parameter that `Param::map` or \
         `Param::set_require_grad` has returned needs `amp.attach(model)` again"
    )
}

/// Says why a scope has read no parameter, where its handle has some or not.
pub(super) fn not_attached(attached: bool) -> &'static str {
    match attached {
        true => {
            "this model was not attached by `amp.attach(model)`, has another `MixedPrecision`, or runs on another thread"
        }
        false => {
            "the model was not attached to this `MixedPrecision`, or runs on another thread. Attach it with `amp.prepare(model, optim)` or \
             `amp.attach(model)`"
        }
    }
}
