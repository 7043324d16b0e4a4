//! `GradScaler` by itself: losses, gradients and their status, steps, updates, settings and failures.

mod config;
mod disabled;
mod findings;
mod half_parameters;
mod iterations;
mod own_rule;
mod reported;
mod resumed;
mod scale_loss;
mod schedules;
mod settings;
mod status;
mod underflow;
