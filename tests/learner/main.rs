//! The real `SupervisedTraining` with loss scaling, on real files.

mod book;
#[path = "../oracle/compare.rs"]
mod compare;
#[cfg(feature = "ddp")]
mod ddp;
mod devices;
mod ending;
#[path = "../oracle/executor/mod.rs"]
mod executor;
mod golden;
mod launch;
mod learning;
mod metrics;
#[path = "../oracle/model.rs"]
mod model;
mod module;
mod oracle;
mod pipelined;
#[path = "../oracle/program.rs"]
mod program;
mod records;
#[path = "../oracle/reference/mod.rs"]
mod reference;
mod resume;
mod schedule;
mod support;
mod workers;
