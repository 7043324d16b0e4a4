use serde::Serialize;
use std::fmt;

use crate::page::power;

/// The finding of an [`audit`](crate::audit()). `Display` says what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// Gradients in half precision are those in f32, but for rounding.
    Fine,
    /// Gradients become zero in half precision.
    Underflow {
        /// A loss scale, tried, at which they do not; none if no scale serves all layers.
        raise_to: Option<f64>,
        /// The parameters with the largest shares that are lost.
        parameters: Vec<String>,
        /// Layers that are enough to run in f32 where no scale helps; empty if none of those that are [`probed`](crate::probed()) are.
        in_f32: Vec<String>,
    },
    /// Gradients become infinite on the way back, or no loss scale makes them those of f32, although the forward pass is right.
    BackwardOverflow {
        /// A loss scale, tried, at which they do not; none if no scale helps.
        lower_to: Option<f64>,
        /// The parameters whose gradients are off, the worst first.
        parameters: Vec<String>,
        /// The same as in `Underflow`.
        in_f32: Vec<String>,
    },
    /// Values of the forward pass, or the loss, are not those of f32: they leave the range of the half precision, or lose their digits in it. No
    /// loss scale helps.
    ForwardOverflow {
        /// The first probe at which it shows; none where nothing is probed before it.
        at: Option<String>,
        /// The same as in `Underflow`.
        in_f32: Vec<String>,
    },
    /// Gradients are finite and wrong at every scale although the forward pass is right, and they are the same in f16 and in bf16. Range would
    /// spare bf16, and rounding would differ: most likely a bug of the backend. Never given where a device has only one of the two.
    Backend {
        /// The parameters that are off the most.
        parameters: Vec<String>,
        /// Layers to run in f32 until it is fixed.
        in_f32: Vec<String>,
    },
    /// Loss or gradients are infinite or NaN in f32 too: half precision is not the cause.
    NotFinite {
        /// The parameter that is not finite itself, if one is.
        parameter: Option<String>,
        /// The first probe at which it shows.
        at: Option<String>,
    },
    /// The gradients of these parameters are exactly zero in f32 too: half precision is not the cause. The others are fine.
    Dead {
        /// Their paths.
        parameters: Vec<String>,
    },
    /// The loss is taken in half precision.
    LossInHalf,
    /// Gradients grow with the loss scale: a tensor crosses the border of half precision without it.
    Leak {
        /// The parameters that show it.
        parameters: Vec<String>,
    },
}

impl Verdict {
    /// Tells whether nothing has to be done for half precision.
    pub fn is_fine(&self) -> bool {
        matches!(self, Self::Fine)
    }
}

fn names(names: &[String]) -> String {
    let quoted = names.iter().take(4).map(|name| format!("`{name}`"));
    let quoted = quoted.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(4) {
        0 => quoted,
        more => format!("{quoted} and {more} more"),
    }
}

/// The advice where no scale helps.
fn island(in_f32: &[String]) -> String {
    match in_f32.is_empty() {
        true => {
            "No layer that is probed mends it in f32: name the layers by `probed`, and audit again."
                .to_string()
        }
        false => format!("Run {} `in_f32`: with that it is right.", names(in_f32)),
    }
}

/// The findings where no loss scale helps.
const NONE_HIGHER: &str = "No loss scale serves all layers: use `rescaled`.";
const NONE_LOWER: &str = "At no loss scale are they those of f32, although the forward pass is: a backward pass exceeds the range of half precision, or \
                          loses its digits there.";

/// The advice where another loss scale helps, or else where none does.
fn moved(how: &str, to: Option<f64>, none: &str, in_f32: &[String]) -> String {
    match to {
        Some(scale) => format!("{how} the loss scale to {}.", power(scale)),
        None => format!("{none} {}", island(in_f32)),
    }
}

/// The finding and the advice where a backend may have a bug.
fn bug(parameters: &[String], in_f32: &[String]) -> String {
    format!(
        "wrong at every scale: gradients of {} are the same in f16 and bf16, and not those of f32, although the forward pass is \
         right. Neither range nor rounding explains that. Most likely the backend has a bug: reproduce it with `reproduce.json`. {}",
        names(parameters),
        island(in_f32)
    )
}

/// The place where values begin that are not finite in f32 either.
fn beginning(parameter: Option<&str>, at: Option<&str>) -> String {
    match (parameter, at) {
        (Some(parameter), _) => format!("Parameter `{parameter}` is infinite or NaN itself."),
        (None, Some(at)) => format!("It shows first at `{at}`. Look at the batch and the loss."),
        (None, None) => "Look at the batch and the loss.".to_string(),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fine => f.write_str("fine: the gradients are those of f32, but for rounding."),
            Self::Underflow {
                raise_to: scale,
                parameters,
                in_f32,
            } => {
                let what = moved("Raise", *scale, NONE_HIGHER, in_f32);
                let names = names(parameters);
                write!(f, "underflow: gradients of {names} become zero. {what}")
            }
            Self::BackwardOverflow {
                lower_to: scale,
                parameters,
                in_f32,
            } => {
                let what = moved("Lower", *scale, NONE_LOWER, in_f32);
                let names = names(parameters);
                write!(f, "overflow in backward: gradients of {names} are not finite, or off. {what}")
            }
            Self::ForwardOverflow { at, in_f32 } => {
                let first = at.as_ref().map_or(String::new(), |at| format!(", first at `{at}`"));
                write!(
                    f,
                    "range or rounding in forward{first}: values exceed half precision, or lose their digits there, and no loss scale helps. {}",
                    island(in_f32)
                )
            }
            Self::Backend { parameters, in_f32 } => f.write_str(&bug(parameters, in_f32)),
            Self::NotFinite { parameter, at } => {
                let what = beginning(parameter.as_deref(), at.as_deref());
                write!(f, "not finite in f32 either: half precision is not the cause. {what}")
            }
            Self::Dead { parameters } => write!(
                f,
                "dead: gradients of {} are exactly zero in f32 too, so half precision is not the cause. The others are fine.",
                names(parameters)
            ),
            Self::LossInHalf => f.write_str(
                "the loss is taken in half precision: let the model's output leave `autocast`, and take the loss of it in f32.",
            ),
            Self::Leak { parameters } => write!(
                f,
                "gradients of {} grow with the loss scale: a tensor crosses the border of `autocast` without it. `amp.check` says where.",
                names(parameters)
            ),
        }
    }
}
