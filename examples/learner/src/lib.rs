//! The digits through Burn's `Learner`, in f16 with loss scaling.

pub mod data;
pub mod model;
pub mod training;

/// What goes wrong here ends in a message.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
