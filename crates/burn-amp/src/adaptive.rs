//! Steps that are far outside of what was usual.

pub use burn_amp_core::Guard;
