//! `ScaledOptimizer` around every optimizer of Burn, and around others'.

mod every_optimizer;
mod fused;
mod hand_over;
mod lr_scheduler;
mod refused;
mod several_devices;
mod shared_scale;
mod support;
mod unsupported;
