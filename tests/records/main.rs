//! What is stored and loaded: optimizers, scalers, states as JSON, golden files; and what happens to damaged files.

mod damage;
mod foreign;
mod golden;
mod json_state;
mod round_trip;
mod support;
mod written;
