//! Gradients between the backward pass and the step.

pub use burn_amp_core::{
    AccumulationWindow, BorderFault, GradientStatus, ScaledGradients, UnscaledGradients, histogram,
    inspect, sum_of_devices,
};
