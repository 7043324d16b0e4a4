//! What the tests share: a small classifier, its data, and runs of the real `SupervisedTraining`.

mod bits;
mod book;
mod child;
mod data;
mod model;
mod run;

pub use bits::{Values, optimizer_pack, pack, parameters};
pub use book::{block_with, chapter};
pub use child::{child, folder};
pub use data::{Batch, Sample, loader, poison, samples};
pub use model::{Net, Plain};
pub use run::{Run, all_finite, quiet, read_metric};
