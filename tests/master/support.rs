//! A small model, gradients made by hand, and a look at the masters.

pub use burn_amp_tests::prelude::*;

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
        net.map(&mut Fill(0))
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

struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.shape(), param.device());
        self.0 += 100;
        let value = |index: usize| ((index * 37 + self.0) % 64) as f32 / 32.0 - 1.0;
        let values = (0..shape.num_elements()).map(value).collect();
        let data = TensorData::new::<f32, _>(values, shape);
        param.map(|_| Tensor::from_data(data, &device).require_grad())
    }
}

/// The optimizer's state.
pub fn state(optim: &MasterWeights) -> Pack {
    pack(optim.clone().into_inner().into_bytes().unwrap())
}

/// The masters, by parameter path; none of a parameter without one.
pub fn master<M: Module>(optim: &MasterWeights, module: &M, path: &str) -> Option<Values> {
    let (id, _) = parameters(module)[path];
    let found = state(optim).tensors.remove(&format!("{id}.master"));
    found.map(|(_, values)| values)
}

/// The numbers of an f32 tensor.
pub fn numbers_of((dtype, _, bytes): &Values) -> Vec<f32> {
    f32s(*dtype, bytes)
}
