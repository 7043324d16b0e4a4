//! What stands between unscaling and the next step: clipping, accumulation, averages of the weights, several losses.

mod accumulation;
mod clip;
mod config;
mod ema;
mod keras;
mod mid_window;
mod order;
mod recipes;
mod standalone;
mod support;
