use burn::{nn::Linear, optim::ModuleOptimizer, tensor::Gradients};
use burn_amp::ScaledOptimizer;

fn step(optim: &mut ScaledOptimizer<ModuleOptimizer>, model: Linear, grads: Gradients) -> Linear {
    optim.step(1e-3, model, grads)
}

fn main() {}
