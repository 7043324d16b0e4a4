//! `MixedPrecision`: a model computes in half precision over parameters in f32, and trains.

mod half_loss;
mod layers;
mod support;
mod tiny_gradients;
mod tiny_updates;
