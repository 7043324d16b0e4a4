//! Inputs, parameters and gradients that the tests of the border share.

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
    let config = at_scale(scale);
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

    /// Cast inside the scopes of this handle.
    pub fn at(values: &[f32], amp: &MixedPrecision) -> Self {
        Self::new(values).apply_reparameterization(amp.clone())
    }

    pub fn forward(&self, input: Tensor<1>) -> Tensor<1> {
        input * self.factor.val()
    }
}

/// The gradients of a loss.
pub fn backward<M: Module>(loss: Tensor<1>, model: &M) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

pub fn sgd(amp: &MixedPrecision) -> ScaledOptimizer<ModuleOptimizer> {
    ScaledOptimizer::new(SgdConfig::new().init(), amp)
}

/// A model, its optimizer, and the loss scale between them.
pub struct Run<M> {
    pub amp: MixedPrecision,
    pub optim: ScaledOptimizer<ModuleOptimizer>,
    pub model: M,
}

impl<M: Module> Run<M> {
    /// With SGD.
    pub fn new(model: M, amp: MixedPrecision) -> Self {
        Self {
            optim: sgd(&amp),
            model: model.apply_reparameterization(amp.clone()),
            amp,
        }
    }

    /// The gradients of a loss.
    pub fn gradients(&self, loss: Tensor<1>) -> GradientsParams {
        backward(loss, &self.model)
    }

    /// Whether the step was skipped.
    pub fn step(&mut self, lr: f64, grads: GradientsParams) -> bool {
        self.model = self.optim.step(lr, self.model.clone(), grads);
        self.optim.scaler().last_outcome() == Some(StepOutcome::Skipped)
    }

    pub fn scale(&self) -> f64 {
        self.amp.loss_scale().into()
    }

    pub fn counters(&self) -> StepCounters {
        self.optim.scaler().counters()
    }
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
    let values = found.flat_map(|(path, dtype, values)| {
        assert_eq!(dtype, DType::F32, "{path}");
        values
    });
    values.map(bits_of).collect()
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
        Self {
            first: Gain::new(&[2.0, -4.0]),
            inner: Gain::new(&[0.5, 8.0]),
            last: Gain::new(&[-1.0, 0.25]),
        }
    }

    /// `outer` computes the first and the last part, `inner` the one between.
    pub fn attach(self, outer: &MixedPrecision, inner: &MixedPrecision) -> Self {
        Self {
            first: self.first.apply_reparameterization(outer.clone()),
            inner: self.inner.apply_reparameterization(inner.clone()),
            last: self.last.apply_reparameterization(outer.clone()),
        }
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

    /// Those without half precision.
    pub fn plain(&self, weight: f64) -> Gradients {
        self.gradients(weight, |x| self.parts(x, |x| self.inner.forward(x)))
    }

    /// The parts one after another, `inner` in place of the second.
    pub fn parts(&self, x: Tensor<1>, inner: impl Fn(Tensor<1>) -> Tensor<1>) -> Tensor<1> {
        self.last.forward(inner(self.first.forward(x)))
    }
}
