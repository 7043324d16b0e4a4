//! Inputs, parameters and gradients that the tests of the border share.

pub mod graph;

pub use burn_amp::adaptive::AdaLoss;
pub use burn_amp_tests::prelude::*;

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
    let amp = MixedPrecision::new(dtype);
    amp.with_scaler(at_scale(scale)).unwrap()
}

/// A power of two.
pub fn two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// A vector of values.
pub fn vector(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &device())
}

/// Two ones.
pub fn ones() -> Tensor<1> {
    vector(&[1.0; 2])
}

/// One factor for each value of a vector: its gradients are exact where factors are powers of two.
#[derive(Module, Debug)]
pub struct Gain {
    pub factor: Param<Tensor<1>>,
}

impl Gain {
    pub fn new(values: &[f32]) -> Self {
        let factor = Param::from_tensor(vector(values));
        Self { factor }
    }

    /// Cast inside the scopes of this handle.
    pub fn at(values: &[f32], amp: &MixedPrecision) -> Self {
        amp.attach(Self::new(values))
    }

    pub fn forward(&self, input: Tensor<1>) -> Tensor<1> {
        input * self.factor.val()
    }
}

/// The gradients of a loss.
pub fn backward<M: Module>(loss: Tensor<1>, model: &M) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

/// All gradients, which must be f32, in the module's order.
pub fn all_gradients<M: Module>(grads: &GradientsParams, module: &M) -> Vec<Vec<f32>> {
    let found = gradients_by_path(grads, module).into_iter();
    let of_f32 = |(path, dtype, values)| {
        assert_eq!(dtype, DType::F32, "{path}");
        values
    };
    found.map(of_f32).collect()
}

/// Burn's optimizer.
pub fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// One whose steps the device decides.
pub fn fused() -> FusedSgd {
    FusedSgd::new(SgdConfig::new())
}

/// A power of two for each region: by how much the loss scale is raised in it.
pub fn by<T: CastFloat, R: CastFloat>(k: i32, x: T, part: impl FnOnce(T) -> R) -> R {
    rescaled(Rescale::power_of_two(k), x, part)
}

/// The same module, with parameters that look random.
pub fn fill<M: Module>(module: M, seed: usize) -> M {
    burn_amp_tests::fill(module, seed, 0.8)
}
