//! What the readers share with the tests of records.

#[path = "../../tests/records/support/bits.rs"]
mod bits;
#[path = "../../tests/records/support/files.rs"]
mod files;
#[path = "../../tests/records/support/quiet.rs"]
mod quiet;
#[path = "../../tests/records/support/small.rs"]
mod small;

pub use bits::{Pack, pack, parameters};
pub use files::Files;
pub use quiet::quietly;
pub use small::{Small, adam, fused_adam, master_adam, momentum, sgd};
