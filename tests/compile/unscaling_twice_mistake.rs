use burn::module::Module;
use burn_amp::{torch::GradScaler, gradients::UnscaledGradients};

fn twice<M: Module>(scaler: &GradScaler, once: UnscaledGradients, model: &M) {
    scaler.unscale(once, model);
}

fn main() {}
