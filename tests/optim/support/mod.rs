//! What the tests of optimizers share: a model, its data, overflows, and comparisons bit by bit.

mod allocations;
mod ascent;
mod net;
mod player;
mod poison;
mod trajectory;

pub use allocations::live_allocations;
pub use ascent::Ascent;
pub use burn_amp_tests::{prelude::*, stored as parameters};
pub use net::{Net, batch, scaled_step, step, steps};
pub use player::Player;
pub use poison::{Poison, gradient};
pub use trajectory::{Plan, compare_with_plain, scaler};
