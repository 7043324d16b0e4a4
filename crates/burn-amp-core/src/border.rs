//! Where half precision begins and ends: handles, scopes, regions and the casts between them.

pub(crate) mod cast;
pub(crate) mod dry_run;
pub(crate) mod mixed_precision;
pub(crate) mod observer;
mod open_scope;
pub(crate) mod scope;

pub(crate) use cast::multiply_losses;
pub(crate) use dry_run::{DryRun, DryRunNotes};
pub(crate) use mixed_precision::MixedPrecision;
pub(crate) use open_scope::SCALES_GRADIENTS;
