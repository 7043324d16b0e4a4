//! A model in half precision, and a look at the masters.

pub use burn_amp_tests::{prelude::*, run::Net, trial::*};

/// A net in f32, with values that f16 and bf16 hold exactly.
pub fn net(device: &Device) -> Net {
    to_full(to_half(Net::new(device), FloatDType::BF16, &[]))
}

/// Adam around masters.
pub fn adam() -> MasterWeights {
    MasterWeights::new(AdamConfig::new().build())
}

/// A step with gradients made by hand.
pub fn step<M: Module>(optim: &mut MasterWeights, lr: f64, net: M, scale: f32) -> M {
    let grads = gradients(&net, 0, scale, FloatDType::F32);
    optim.step(lr, net, grads)
}

/// The masters, by parameter path; none of a parameter without one.
pub fn master<M: Module>(optim: &MasterWeights, module: &M, path: &str) -> Option<Values> {
    let (id, _) = parameters(module)[path];
    let found = state(optim).tensors.remove(&format!("{id}.master"));
    found.map(|(_, values)| values)
}

/// Their numbers.
pub fn master_numbers<M: Module>(optim: &MasterWeights, module: &M, path: &str) -> Vec<f32> {
    let (dtype, _, bytes) = master(optim, module, path).unwrap();
    f32s(dtype, bytes)
}
