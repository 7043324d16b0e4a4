//! A small model, and a look at the masters.

pub use burn_amp_tests::{prelude::*, trial::*};

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub norm: LayerNorm,
    pub head: Linear,
}

impl Net {
    /// In f32, with values that f16 and bf16 hold exactly.
    pub fn new(device: &Device) -> Self {
        let net = Self {
            hidden: LinearConfig::new(6, 4).init(device),
            norm: LayerNormConfig::new(4).init(device),
            head: LinearConfig::new(4, 3).init(device),
        };
        to_full(to_half(fill(net, 0, 1.0), FloatDType::BF16, &[]))
    }

    /// For a model in half precision, its `norm` included or not.
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = self.hidden.forward(input);
        let hidden = match self.norm.gamma.val().dtype() {
            DType::F32 => in_f32(hidden, |x| self.norm.forward(x)),
            _ => self.norm.forward(hidden),
        };
        self.head.forward(hidden)
    }
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
    f32s(dtype, &bytes)
}
