//! What the tests of optimizers share: a model, its data, overflows, and comparisons bit by bit.

mod allocations;
mod net;
mod player;
mod trajectory;

pub use allocations::live_allocations;
pub use burn_amp_tests::trial::{BAD, ByHand, ONES, Pair, Trial};
pub use burn_amp_tests::{prelude::*, stored as parameters};
pub use net::{Net, batch, of_batch, steps};
pub use player::{Player, loss, player};
pub use trajectory::{compare_on_devices, compare_with_plain, multi, scaler};
