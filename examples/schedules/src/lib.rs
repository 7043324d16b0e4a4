//! Trains three programs with every schedule of the loss scale, and with every guard, from one seed, and compares.

pub mod choices;
pub mod program;
pub mod report;
pub mod training;

/// What can go wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
