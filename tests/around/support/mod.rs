//! What these tests share.

#[path = "../../records/support/bits.rs"]
mod bits;
mod fill;
mod pair;
mod run;

pub use bits::{Pack, pack, parameters};
pub use fill::{filled, wave};
pub use pair::{Pair, sgd, values};
pub use run::Run;
