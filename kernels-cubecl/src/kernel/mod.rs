//! The CubeCL kernels: a pass over many tensors, the reduction of what its cubes have found, and the step of an optimizer.

mod elementwise;
mod finish;
mod histogram;
mod observe;
mod pass;
mod schedule;
mod share;
mod update;

pub use elementwise::weigh;
pub use finish::{UNITS as FINISH_UNITS, finish_status};
pub use histogram::{BINS, UNITS as HISTOGRAM_UNITS, finish_histogram, histogram_many};
pub use observe::{BIG, ROW};
pub use pass::{Form, InPlace, Inspect, Mode, Work, Write, measure, rows};
// For the tests of the generated sources.
#[cfg(feature = "dialects")]
pub use pass::loads;
pub use schedule::{advance, decide};
pub use share::ENTRY;
pub use update::{UNITS as UPDATE_UNITS, units as update_units, update_many};
