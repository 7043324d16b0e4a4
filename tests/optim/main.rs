//! `ScaledOptimizer` around every optimizer of Burn, and around others'.

mod allocations;
mod every_optimizer;
mod fused;
mod lr_scheduler;
mod refused;
mod shared_scale;
mod support;
