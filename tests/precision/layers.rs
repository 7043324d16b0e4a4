//! Linear and Conv2d, forward, backward and step, in f16 and in bf16.

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{Linear, LinearConfig, conv::Conv2d, conv::Conv2dConfig},
    optim::{GradientsParams, SgdConfig},
    store::ModuleRecord,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{CastParameter, GradScalerConfig, MixedPrecision, ScaledOptimizer, StepOutcome};
use burn_pack::Reader;

use crate::support::{filled, input};

/// The stored values of all parameters, which must be f32.
fn f32_values<M: Module>(module: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.base().to_data();
            assert_eq!(data.dtype(), DType::F32);
            self.0.extend(data.as_slice::<f32>().unwrap());
        }
    }

    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

/// Checks that every parameter has a gradient in f32.
fn check_gradients<M: Module>(grads: &GradientsParams, module: &M) {
    struct Check<'a>(&'a GradientsParams, usize);

    impl ModuleVisitor for Check<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.0.get::<D>(param.id).unwrap();
            assert_eq!(grad.dtype(), DType::F32);
            self.1 += 1;
        }
    }

    let mut check = Check(grads, 0);
    module.visit(&mut check);
    assert_eq!(check.1, 2, "weight and bias");
}

/// The largest difference, relative to the largest magnitude.
fn relative_error<const D: usize>(actual: Tensor<D>, expected: Tensor<D>) -> f32 {
    let scale: f32 = expected.clone().abs().max().into_scalar();
    let error: f32 = (actual - expected).abs().max().into_scalar();
    error / scale
}

fn check<M: Module, const D: usize>(
    precision: MixedPrecision,
    dtype: DType,
    plain: M,
    input: Tensor<D>,
    forward: impl Fn(&M, Tensor<D>) -> Tensor<D>,
) {
    let start = f32_values(&plain);
    let mut model = plain.clone().apply_reparameterization(precision.clone());
    assert_eq!(f32_values(&model), start);

    let output = forward(&model, precision.cast(input.clone()));
    assert_eq!(output.dtype(), dtype);
    // It is the model's function, but for the rounding, which shows.
    let error = relative_error(
        output.cast(FloatDType::F32).inner(),
        forward(&plain, input.clone()).inner(),
    );
    assert!(error > 0.0 && error < 2e-2, "off by {error}");

    let scaler = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .init()
        .unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
    let mut losses = Vec::new();
    for _ in 0..4 {
        let output = forward(&model, precision.cast(input.clone()));
        let loss = output.cast(FloatDType::F32).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let grads = optim.backward(loss, &model);
        check_gradients(grads.params(), &model);
        model = optim.step(0.01, model, grads);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Applied));
        assert_eq!(
            forward(&model, precision.cast(input.clone())).dtype(),
            dtype
        );
    }
    assert!(
        losses.windows(2).all(|pair| pair[1] < pair[0]),
        "{losses:?}"
    );
    let trained = f32_values(&model);
    assert!(
        trained
            .iter()
            .zip(&start)
            .all(|(after, before)| after != before)
    );

    // The record is that of the plain model, in f32.
    let bytes = model.clone().into_record().into_bytes().unwrap();
    let names = |bytes| {
        let reader = Reader::from_bytes(bytes).unwrap();
        let tensors = reader.into_tensors().unwrap().into_iter();
        tensors
            .map(|tensor| {
                let (name, dtype, ..) = tensor.into_parts().unwrap();
                (name, dtype)
            })
            .collect::<Vec<_>>()
    };
    let expected = names(plain.clone().into_record().into_bytes().unwrap());
    assert_eq!(names(bytes.clone()), expected);
    assert!(expected.iter().all(|(_, dtype)| *dtype == DType::F32));
    let loaded = plain.load_record(ModuleRecord::from_bytes(bytes).unwrap());
    assert_eq!(f32_values(&loaded), trained);
    assert_eq!(forward(&loaded, input).dtype(), DType::F32);
}

fn precisions() -> [(MixedPrecision, DType); 2] {
    [
        (MixedPrecision::f16(), DType::F16),
        (MixedPrecision::bf16(), DType::BF16),
    ]
}

#[test]
fn linear() {
    let device = Device::flex().autodiff();
    let plain: Linear = filled(LinearConfig::new(6, 5).init(&device));
    let input = input([7, 6]);
    for (precision, dtype) in precisions() {
        let forward = |model: &Linear, input| model.forward(input);
        check(precision, dtype, plain.clone(), input.clone(), forward);
    }
}

#[test]
fn conv2d() {
    let device = Device::flex().autodiff();
    let plain: Conv2d = filled(Conv2dConfig::new([2, 3], [3, 3]).init(&device));
    let input = input([4, 2, 6, 5]);
    for (precision, dtype) in precisions() {
        let forward = |model: &Conv2d, input| model.forward(input);
        check(precision, dtype, plain.clone(), input.clone(), forward);
    }
}

#[test]
fn the_dtype_can_be_asked() {
    let device = Device::flex();
    for (precision, dtype) in precisions() {
        let expected = FloatDType::from(dtype);
        assert_eq!(precision.dtype(), expected);
        assert_eq!(MixedPrecision::new(expected).dtype(), expected);
        let linear: Linear = LinearConfig::new(2, 2).init(&device);
        let linear = linear.apply_reparameterization(precision);
        let cast = linear.weight.reparameterization::<CastParameter>();
        assert_eq!(cast.unwrap().dtype(), expected);
        assert_eq!(linear.weight.val().dtype(), dtype);
    }
}

#[test]
fn f32_leaves_the_model_as_it_is() {
    let device = Device::flex().autodiff();
    let precision = MixedPrecision::new(FloatDType::F32);
    let plain: Linear = filled(LinearConfig::new(6, 5).init(&device));
    let model = plain.clone().apply_reparameterization(precision.clone());
    let input = input([7, 6]);
    let output = model.forward(precision.cast(input.clone()));
    assert_eq!(output.to_data(), plain.forward(input).to_data());
}
