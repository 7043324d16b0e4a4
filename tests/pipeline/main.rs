//! `PipelinedOptimizer`: what it promises, against one thread that does the same; its thread, its failures, its records.

mod failures;
mod options;
mod protocol;
mod records;
mod simulation;
mod statistics;
mod support;
