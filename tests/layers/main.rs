//! Every layer of burn-nn in half precision: what runs as it is, what belongs `in_f32`, and that no result is garbage.

mod activations;
mod listed;
mod modules;
mod running_statistics;
mod support;
