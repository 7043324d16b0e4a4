//! The real `SupervisedTraining` with loss scaling, on real files.

mod averages;
mod book;
mod devices;
mod ending;
mod golden;
mod launch;
mod learning;
mod metrics;
mod module;
mod pipelined;
mod records;
mod resume;
mod schedule;
mod support;
