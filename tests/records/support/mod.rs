//! What the tests of records share.

mod bits;
mod child;
mod files;
#[path = "../../layers/support/logs.rs"]
mod logs;
mod quiet;
mod run;
mod small;

pub use bits::{Pack, pack, parameters};
pub use child::{child, folder};
pub use files::Files;
pub use logs::logs;
pub use quiet::quietly;
pub use run::{Run, STEPS};
pub use small::{Small, adam, fused_adam, master_adam, momentum, sgd};
