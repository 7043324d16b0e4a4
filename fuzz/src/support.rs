//! What the readers share with the tests of records.

pub use burn_amp_tests::{Files, Pack, pack, parameters, quietly};
pub use burn_amp_tests::small::{Small, adam, fused_adam, master_adam, momentum, sgd, trained};
