//! The real `SupervisedTraining` with loss scaling, on real files.

mod accumulation;
mod averages;
mod book;
mod clipping;
mod devices;
mod ending;
mod evaluator;
mod fused;
mod golden;
mod guard;
mod killed;
mod later;
#[cfg(feature = "cubecl")]
mod launches;
mod learning;
mod master;
mod module;
mod pipelined;
mod records;
mod resume;
mod schedule;
mod skipping;
mod statistics;
mod support;
