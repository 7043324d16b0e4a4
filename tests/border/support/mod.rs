//! Inputs, parameters and gradients that the tests of the border share.

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

/// The bits of an f32 tensor; those of every NaN are the same.
pub fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    assert_eq!(tensor.dtype(), DType::F32);
    values(tensor).into_iter().map(bits_of).collect()
}

fn bits_of(value: f32) -> u32 {
    if value.is_nan() { f32::NAN } else { value }.to_bits()
}

/// The gradients of a vector parameter.
pub fn gradient(grads: &GradientsParams, id: ParamId) -> Vec<f32> {
    let grad = grads.get::<1>(id).expect("no gradient");
    assert_eq!(grad.dtype(), DType::F32);
    values(grad)
}

/// The bits of all gradients, which must be f32, in the module's order.
pub fn gradient_bits<M: Module>(grads: &GradientsParams, module: &M) -> Vec<u32> {
    let found = gradients_by_path(grads, module).into_iter();
    let of_f32 = |(path, dtype, values)| {
        assert_eq!(dtype, DType::F32, "{path}");
        values
    };
    found.flat_map(of_f32).map(bits_of).collect()
}

/// A power of two for each region: by how much the loss scale is raised in it.
pub fn by<T: CastFloat, R: CastFloat>(k: i32, x: T, part: impl FnOnce(T) -> R) -> R {
    rescaled(Rescale::power_of_two(k), x, part)
}

/// The same module, with parameters that look random.
pub fn fill<M: Module>(module: M, seed: usize) -> M {
    burn_amp_tests::fill(module, seed, 0.8)
}

/// Of an input, and of the parts of a chain.
pub type Gradients = [Vec<f32>; 4];

/// Three parts. All values are powers of two, so that gradients are exact, unless half precision cannot hold them.
#[derive(Module, Debug)]
pub struct Chain {
    pub first: Gain,
    pub inner: Gain,
    pub last: Gain,
}

impl Chain {
    /// Outside of half precision.
    pub fn new() -> Self {
        let values = [[2.0, -4.0], [0.5, 8.0], [-1.0, 0.25]];
        let [first, inner, last] = values.map(|values| Gain::new(&values));
        Self { first, inner, last }
    }

    /// `outer` computes the first and the last part, `inner` the one between.
    pub fn attach(self, outer: &MixedPrecision, inner: &MixedPrecision) -> Self {
        let [first, last] = [self.first, self.last].map(|gain| outer.attach(gain));
        let inner = inner.attach(self.inner);
        Self { first, inner, last }
    }

    /// The gradients of a loss of `weight` times the sum of the outputs: of the input, and of the parts.
    pub fn gradients(&self, weight: f64, forward: impl Fn(Tensor<1>) -> Tensor<1>) -> Gradients {
        let input = vector(&[1.0, 2.0]).require_grad();
        let output = forward(input.clone());
        assert_eq!(output.dtype(), DType::F32);
        let grads = (output.sum() * weight).backward();
        let of_input = values(input.grad(&grads).unwrap());
        let grads = GradientsParams::from_grads(grads, self);
        let of = |gain: &Gain| gradient(&grads, gain.factor.id);
        [of_input, of(&self.first), of(&self.inner), of(&self.last)]
    }

    /// Those of the parts in a scope, with something in place of the second.
    pub fn around(
        &self,
        amp: &MixedPrecision,
        weight: f64,
        inner: impl Fn(Tensor<1>) -> Tensor<1>,
    ) -> Gradients {
        self.gradients(weight, |x| amp.autocast(x, |x| self.parts(x, &inner)))
    }

    /// Those without half precision.
    pub fn plain(&self, weight: f64) -> Gradients {
        self.gradients(weight, |x| self.parts(x, |x| self.inner.forward(x)))
    }

    /// The parts one after another, `inner` in place of the second.
    pub fn parts(&self, x: Tensor<1>, inner: impl Fn(Tensor<1>) -> Tensor<1>) -> Tensor<1> {
        self.last.forward(inner(self.first.forward(x)))
    }
}
