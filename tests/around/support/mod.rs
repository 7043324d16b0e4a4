//! What these tests share.

#[path = "../../records/support/bits.rs"]
mod bits;
#[path = "../../scaler/support/capture.rs"]
mod capture;
#[path = "../../records/support/files.rs"]
mod files;
mod fill;
mod pair;
mod run;

pub use bits::{Pack, pack, parameters};
pub use capture::captured;
pub use files::Files;
pub use fill::{filled, wave};
pub use pair::{Pair, on_flex, sgd, values};
pub use run::Run;
