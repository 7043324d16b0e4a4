//! Where half precision begins and ends: handles, scopes, regions and the casts between them.

pub(super) mod cast;
pub(crate) mod dry_run;
pub(super) mod mixed_precision;
pub(crate) mod observer;
mod open_scope;
pub(super) mod scope;

pub use cast::multiply_losses;
pub(crate) use dry_run::{DryRun, DryRunNotes};
pub(crate) use mixed_precision::MixedPrecision;
pub(crate) use open_scope::SCALES_GRADIENTS;
