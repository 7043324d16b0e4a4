//! A generative adversarial network that draws digits of 8 by 8 pixels: two optimizers under one loss scale.

pub mod network;
pub mod report;
pub mod training;

/// What can go wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
