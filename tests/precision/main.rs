//! What the loss scale and f32 parameters are there for: values that half precision cannot hold.

mod half_loss;
mod logger;
mod prepare;
mod tiny_updates;
