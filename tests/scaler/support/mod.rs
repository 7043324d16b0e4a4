//! What the tests of the scaler share.

mod capture;
mod model;

pub use capture::captured;
pub use model::{Model, gradient, scaler, set_value, unscaled, values_of};
