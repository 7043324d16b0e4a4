//! The CubeCL kernels: a pass over many tensors, and the reduction of what its cubes have found.

mod blend;
mod cast;
#[cfg(all(test, feature = "dialects"))]
mod dialects;
mod finish;
mod histogram;
mod observe;
mod pass;

pub(crate) use blend::{blend_anew, blend_in_place};
pub(crate) use cast::mul_cast;
pub(crate) use finish::finish_status;
pub(crate) use histogram::{BINS, UNITS as HISTOGRAM_UNITS, finish_histogram, histogram_many};
pub(crate) use observe::{HEAD, ROW};
#[cfg(all(test, feature = "dialects"))]
pub(crate) use pass::LOADS;
pub(crate) use pass::{inspect_many, unscale_in_place, unscale_many};
