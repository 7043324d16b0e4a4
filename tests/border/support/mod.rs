//! Inputs, parameters and gradients that the tests of the border share.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Device, FloatDType, Tensor, TensorData},
};
use burn_amp::{GradScalerConfig, MixedPrecision};

#[path = "../../layers/support/logs.rs"]
mod logs;
mod panics;

pub use logs::logs;
pub use panics::panic_message;

/// Burn's default device, with autodiff.
pub fn device() -> Device {
    Device::default().autodiff()
}

/// The half-precision dtypes that the device has.
pub fn halves() -> Vec<FloatDType> {
    let both = [FloatDType::F16, FloatDType::BF16];
    let has = |dtype: &FloatDType| device().supports_dtype(DType::from(*dtype));
    both.into_iter().filter(has).collect()
}

/// f16 with this loss scale.
pub fn f16(scale: f64) -> MixedPrecision {
    scaled(FloatDType::F16, scale)
}

/// A precision with this loss scale.
pub fn scaled(dtype: FloatDType, scale: f64) -> MixedPrecision {
    let config = GradScalerConfig::new().with_init_scale(scale);
    MixedPrecision::new(dtype).with_scaler(config).unwrap()
}

/// A power of two.
pub fn two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// A vector of values.
pub fn vector(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &device())
}

/// One factor for each value of a vector: its gradients are exact where factors are powers of two.
#[derive(Module, Debug)]
pub struct Gain {
    pub factor: Param<Tensor<1>>,
}

impl Gain {
    pub fn new(values: &[f32]) -> Self {
        Self {
            factor: Param::from_tensor(vector(values)),
        }
    }

    pub fn forward(&self, input: Tensor<1>) -> Tensor<1> {
        input * self.factor.val()
    }
}

/// The values of any float tensor.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.inner().cast(FloatDType::F32).to_data();
    data.iter::<f32>().collect()
}

/// The bits of an f32 tensor; those of every NaN are the same.
pub fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    assert_eq!(tensor.dtype(), DType::F32);
    let data = tensor.inner().to_data();
    let bits = |value: f32| match value.is_nan() {
        true => f32::NAN.to_bits(),
        false => value.to_bits(),
    };
    data.iter::<f32>().map(bits).collect()
}

/// The gradients of a vector parameter.
pub fn gradient(grads: &GradientsParams, id: ParamId) -> Vec<f32> {
    let grad = grads.get::<1>(id).expect("no gradient");
    assert_eq!(grad.dtype(), DType::F32);
    values(grad)
}

/// The bits of all gradients, which must be f32, in the module's order.
pub fn gradient_bits<M: Module>(grads: &GradientsParams, module: &M) -> Vec<u32> {
    struct Collect<'a>(&'a GradientsParams, Vec<u32>);

    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.get::<D>(param.id) {
                self.1.extend(bits(grad));
            }
        }
    }

    let mut collect = Collect(grads, Vec::new());
    module.visit(&mut collect);
    collect.1
}

/// The stored values of all parameters.
pub fn parameters<M: Module>(module: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(values(param.base()));
        }
    }

    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

/// Values between -`height` and `height` that look random.
pub fn wave(seed: usize, count: usize, height: f32) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * height;
    (seed..seed + count).map(value).collect()
}

/// A tensor of such values.
pub fn random<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product();
    Tensor::from_data(TensorData::new(wave(seed, count, 1.0), shape), device)
}

/// The same module, with parameters that look random.
pub fn fill<M: Module>(module: M, seed: usize) -> M {
    struct Fill(usize);

    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (shape, device) = (param.shape(), param.device());
            self.0 += 100;
            let data = TensorData::new(wave(self.0, shape.num_elements(), 0.8), shape);
            param.map(|_| Tensor::from_data(data, &device).require_grad())
        }
    }

    module.map(&mut Fill(seed))
}
