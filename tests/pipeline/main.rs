//! `PipelinedOptimizer`: its thread, its failures, its records, and what is set on it. That it trains as one thread would, `tests/oracle` shows.

mod failures;
mod options;
mod protocol;
mod records;
mod support;
