//! What the tests of records share.

mod child;

pub use burn_amp_tests::small::{Small, adam, fused_adam, master_adam, momentum, sgd};
pub use burn_amp_tests::{Files, Pack, Run, logs, pack, parameters, quietly};
pub use child::{child, folder};
