//! What stands between unscaling and the next step: clipping, accumulation, averages of the weights, hooks, several losses.

mod averages;
mod clip;
mod gradients;
mod guard;
mod hooks;
mod keras;
mod mpi;
mod peers;
mod recipes;
mod records;
mod settings;
mod support;
mod windows;
