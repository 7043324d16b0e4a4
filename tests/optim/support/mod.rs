//! What the tests of optimizers share: a model, its data, overflows, and comparisons bit by bit.

#[path = "../../scaler/support/capture.rs"]
mod capture;
mod decayed_sign;
mod net;
mod poison;
mod snapshot;
mod trajectory;

pub use capture::captured;
pub use decayed_sign::DecayedSign;
pub use net::{Net, batch};
pub use poison::Poison;
pub use snapshot::{State, parameters, state};
pub use trajectory::{Plan, compare_with_plain, scaler};
