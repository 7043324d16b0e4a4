//! What stands between unscaling and the next step: clipping, accumulation, averages of the weights, several losses.

mod accumulation;
mod changed_gradients;
mod clip;
mod config;
mod ema;
mod guard;
mod half_gradients;
mod hooks;
mod keras;
mod mid_window;
mod read_before;
mod recipes;
mod skipped_windows;
mod standalone;
mod support;
