//! What the tests share: a small classifier, its data, and runs of the real `SupervisedTraining`.

mod bits;
mod book;
mod child;
mod data;
mod model;
mod run;

pub use bits::{STATE_ID, optimizer_pack, pack, scaler_state, stored_state, values};
pub use book::{block_with, chapter};
pub use burn_amp_tests::{Values, parameters};
pub use child::{child, folder};
pub use data::{Batch, Sample, loader, poison, samples, spoil};
pub use model::Net;
pub use run::{Run, all_finite, lr, quiet, read_metric, temp_dir};
