//! `ScaledOptimizer` around Burn's optimizers, and around those of this crate.

mod allocations;
mod fused;
mod lr_scheduler;
mod refused;
mod several_devices;
mod shared_scale;
mod support;
