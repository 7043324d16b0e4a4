//! What the tests of optimizers share: a model, its data, overflows, and comparisons bit by bit.

mod allocations;
mod decayed_sign;
mod net;
mod poison;
mod snapshot;
mod trajectory;

pub use allocations::live_allocations;
pub use burn_amp_tests::{captured, stored as parameters};
pub use decayed_sign::DecayedSign;
pub use net::{Net, batch};
pub use poison::Poison;
pub use snapshot::{State, state};
pub use trajectory::{Plan, compare_with_plain, scaler};
