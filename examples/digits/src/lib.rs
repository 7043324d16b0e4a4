//! Trains one network on handwritten digits from one seed, three times: in f32, in f16, and in f16 with loss scaling.

pub mod backend;
pub mod checkpoint;
pub mod data;
pub mod model;
pub mod plot;
pub mod report;
pub mod training;

/// What can go wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
