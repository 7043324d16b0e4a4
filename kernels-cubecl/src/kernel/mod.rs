//! The CubeCL kernels: a pass over many tensors, and the reduction of what its cubes have found.

mod elementwise;
mod finish;
mod histogram;
mod observe;
mod pass;
mod share;

pub(crate) use elementwise::{blend, mul_cast};
pub(crate) use finish::{UNITS as FINISH_UNITS, finish_status, verdict};
pub(crate) use histogram::{BINS, UNITS as HISTOGRAM_UNITS, finish_histogram, histogram_many};
pub(crate) use observe::{BIG, ROW};
pub(crate) use pass::{Form, InPlace, Inspect, Job, Work, Write, measure};
pub(crate) use share::ENTRY;
