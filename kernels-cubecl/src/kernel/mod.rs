//! The CubeCL kernels: a pass over many tensors, the reduction of what its cubes have found, and the step of an optimizer.

pub mod elementwise;
pub mod finish;
pub mod histogram;
pub mod observe;
pub mod pass;
pub mod schedule;
pub mod share;
pub mod update;
