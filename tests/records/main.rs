//! What is stored and loaded: optimizers, scalers, states as JSON, golden files; and what happens to damaged files.

mod atomic;
mod damage;
mod drop_back;
mod foreign;
mod golden;
mod json_state;
mod newer;
mod resume;
mod round_trip;
mod support;
