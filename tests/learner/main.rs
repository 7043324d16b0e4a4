//! The real `SupervisedTraining` with loss scaling, on real files.

mod averages;
mod book;
mod by_hand;
mod devices;
mod ending;
mod evaluator;
mod fused;
mod golden;
mod killed;
mod launch;
mod learning;
mod master;
mod module;
mod pipelined;
mod recorded;
mod records;
mod resume;
mod schedule;
mod skipping;
mod statistics;
mod support;
