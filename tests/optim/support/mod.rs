//! What the tests of optimizers share: a model, its data, overflows, and comparisons bit by bit.

mod allocations;
mod decayed_sign;
mod net;
mod player;
mod poison;
mod trajectory;

pub use allocations::live_allocations;
pub use burn_amp_tests::{Pack, captured, state, stored as parameters};
pub use decayed_sign::DecayedSign;
pub use net::{Net, batch, scaled_step, step, steps};
pub use player::Player;
pub use poison::{Poison, gradient};
pub use trajectory::{Plan, compare_with_plain, scaler};
