//! Trains one GPT on Shakespeare's sonnets from one seed: in f32, in f16, in f16 with loss scaling, and in bf16.

pub mod lost;
pub mod model;
pub mod report;
pub mod text;
pub mod training;

/// What can go wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
