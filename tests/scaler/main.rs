//! `GradScaler` by itself: losses, gradients and their status, steps, updates, settings and failures.

mod absent_gradients;
mod config;
mod counters;
mod disabled;
mod exhausted;
mod findings;
mod half_parameters;
mod iteration;
mod own_rule;
mod reported;
mod resumed;
mod scale_loss;
mod schedules;
mod settings;
mod several_optimizers;
mod status;
mod underflow;
