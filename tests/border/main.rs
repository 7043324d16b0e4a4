//! The border of half precision: scopes, what crosses them, and the loss scale that gradients carry inside.

mod asked;
mod beside_f32;
mod calibrate;
mod causes_in_turn;
mod identity;
mod inputs;
mod mistakes;
mod nesting;
mod parameters;
mod refusals;
mod regions;
mod scale;
mod skip_cause;
mod support;
mod threads;
mod two_dtypes;
