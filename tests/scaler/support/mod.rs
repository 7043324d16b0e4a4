//! What the tests of the scaler share.

mod model;

pub use burn_amp_tests::prelude::*;
pub use model::{Model, Trial, gradient, scaler, unscaled, values_of};
