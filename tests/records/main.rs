//! What is stored and loaded: optimizers, scalers, states as JSON, golden files; and what happens to damaged files.

mod atomic;
mod crafted;
mod damage;
mod drop_back;
mod foreign;
mod forge;
mod golden;
mod hidden;
mod json_state;
mod owners;
mod readers;
mod resume;
mod round_trip;
mod support;
mod written;
