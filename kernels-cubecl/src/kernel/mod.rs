//! The CubeCL kernels: a pass over many tensors, the reduction of what its cubes have found, and the step of an optimizer.

pub mod elementwise;
pub mod finish;
pub mod histogram;
pub(crate) mod observe;
pub mod pass;
pub mod schedule;
pub(crate) mod share;
pub mod update;
