//! The dtype in which gradients come out, and what becomes of parameters in half precision.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;

use crate::support::{Model, gradient, scaler, unscaled, values_of};

fn sgd() -> ModuleOptimizer {
    let momentum = Some(MomentumConfig::new());
    SgdConfig::new().with_momentum(momentum).init()
}

fn in_parameters_dtype(scale: f64) -> GradScaler {
    let config = GradScalerConfig::new()
        .with_init_scale(scale)
        .with_parameter_dtype_gradients(true);
    config.init().unwrap()
}

#[test]
fn gradients_come_out_in_full_precision() {
    let full = [
        (DType::F16, DType::F32),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
    ];
    for (parameter, expected) in full {
        let model = Model::of(parameter);
        // 2^-24 is the smallest f16; a 65536th of it is far below.
        let tiny = 2f64.powi(-24);
        let grads = unscaled(&scaler(65536.0), model.gradients(|_| tiny), &model);
        let vector = grads.get::<1>(model.vector.id).unwrap();
        let kernel = grads.get::<4>(model.kernel.id).unwrap();
        assert_eq!((vector.dtype(), kernel.dtype()), (expected, expected));
        let values = values_of::<4>(grads.params(), model.kernel.id);
        assert_eq!(values, [2f64.powi(-40); 36], "{parameter:?}");
        assert_eq!(grads.status().zeros(), 0);
    }
}

/// A gradient of a wider dtype than the parameter's comes out as if it were the parameter's.
#[test]
fn the_parameter_decides_and_not_the_gradient() {
    let model = Model::new();
    let mut grads = GradientsParams::new();
    gradient(&mut grads, model.vector.id, [5], DType::F64, |_| 8.0);
    gradient(&mut grads, model.matrix.id, [3, 4], DType::F16, |_| 8.0);
    let grads = unscaled(&scaler(16.0), grads, &model);
    assert_eq!(grads.get::<1>(model.vector.id).unwrap().dtype(), DType::F32);
    assert_eq!(grads.get::<2>(model.matrix.id).unwrap().dtype(), DType::F32);
    assert_eq!(values_of::<2>(grads.params(), model.matrix.id), [0.5; 12]);
}

#[test]
fn a_plain_optimizer_refuses_half_precision_parameters() {
    for dtype in [DType::F16, DType::BF16] {
        let model = Model::of(dtype);
        let mut optim = sgd();
        let mut scaler = scaler(1024.0);
        let grads = scaler.unscale(model.clean(1024.0), &model).unwrap();
        let error = scaler
            .try_step(&mut optim, 0.1, model.clone(), grads)
            .unwrap_err()
            .error;

        let AmpError::HalfPrecisionParameter {
            parameter,
            parameter_dtype,
            gradient_dtype,
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(parameter, "vector");
        assert_eq!((*parameter_dtype, *gradient_dtype), (dtype, DType::F32));
        let message = error.to_string();
        says(
            &message,
            ["`vector`", "MasterWeights", "parameter_dtype_gradients"],
        );

        assert!(optim.to_record().is_empty());
        assert_eq!(scaler.counters().steps(), 0);
        assert_eq!(scaler.last_outcome(), None);
        assert_eq!(scaler.last_status(), None);
        assert_eq!(scaler.update().unwrap(), None);
        assert_eq!(scaler.growth_tracker(), 0);
        assert_eq!(model.values(), [1.0; Model::VALUES]);
    }
}

#[test]
#[should_panic(expected = "parameter `vector` is F16 but its unscaled gradient is F32")]
fn step_panics_with_the_message() {
    let model = Model::of(DType::F16);
    let mut scaler = scaler(1024.0);
    let grads = scaler.unscale(model.clean(1024.0), &model).unwrap();
    scaler.step(&mut sgd(), 0.1, model, grads);
}

/// One half-precision parameter among others is found wherever it is; without a gradient it is no obstacle.
#[test]
fn one_half_precision_parameter_among_others() {
    #[derive(Module, Debug)]
    struct Outer {
        full: Model,
        inner: Inner,
    }

    #[derive(Module, Debug)]
    struct Inner {
        half: Param<Tensor<1>>,
    }

    let device = Device::flex().autodiff();
    let half = Tensor::ones([2], (&device, DType::BF16));
    let module = Outer {
        full: Model::new(),
        inner: Inner {
            half: Param::from_tensor(half),
        },
    };
    let mut scaler = scaler(1.0);
    let mut optim = sgd();

    let grads = scaler.unscale(module.full.clean(1.0), &module).unwrap();
    let module = scaler.try_step(&mut optim, 0.1, module, grads).unwrap();
    scaler.update().unwrap();

    let mut grads = module.full.clean(1.0);
    gradient(
        grads.params_mut(),
        module.inner.half.id,
        [2],
        DType::BF16,
        |_| 1.0,
    );
    let grads = scaler.unscale(grads, &module).unwrap();
    let error = scaler.try_step(&mut optim, 0.1, module, grads).unwrap_err();
    assert!(error.to_string().contains("`inner.half`"), "{error}");
}

#[test]
fn gradients_in_the_parameters_dtype_are_stepped_on() {
    for dtype in [DType::F16, DType::BF16] {
        let model = Model::of(dtype);
        let mut scaler = in_parameters_dtype(1024.0);
        let grads = scaler.unscale(model.clean(1024.0), &model).unwrap();
        assert_eq!(grads.get::<2>(model.matrix.id).unwrap().dtype(), dtype);
        let model = scaler.try_step(&mut sgd(), 0.5, model, grads).unwrap();
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
        assert_eq!(model.matrix.val().dtype(), dtype);
        assert_eq!(model.values(), [0.75; Model::VALUES]);
    }
    // Wider parameters keep their gradients.
    for dtype in [DType::F32, DType::F64] {
        let model = Model::of(dtype);
        let grads = in_parameters_dtype(2.0)
            .unscale(model.clean(2.0), &model)
            .unwrap();
        assert_eq!(grads.get::<2>(model.matrix.id).unwrap().dtype(), dtype);
    }
}

/// 60000 fits into f16; divided by a scale of 1/16 it no longer does.
#[test]
fn overflow_by_rounding_is_an_overflow() {
    let model = Model::of(DType::F16);
    let gradients = || model.gradients(|index| if index == 20 { 60000.0 } else { 1.0 });
    let mut rounding = in_parameters_dtype(0.0625);
    let grads = unscaled(&rounding, gradients(), &model);
    assert_eq!(grads.status().non_finite(), 1);
    assert_eq!(grads.status().overflow_parameter(), Some("kernel"));
    assert_eq!(grads.status().max_abs(), 16.0);
    let after = rounding.step(&mut sgd(), 0.5, model.clone(), grads);
    assert_eq!(rounding.last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(after.values(), [1.0; Model::VALUES]);

    let full = unscaled(&scaler(0.0625), gradients(), &model);
    assert!(!full.has_overflow());
    assert_eq!(full.status().max_abs(), 960000.0);
}

/// What rounding to the parameter's dtype loses shows in the status.
#[test]
fn underflow_by_rounding_shows() {
    let model = Model::of(DType::F16);
    let gradients = |index| if index < 5 { 2f64.powi(-14) } else { 1.0 };
    let grads = unscaled(
        &in_parameters_dtype(65536.0),
        model.gradients(gradients),
        &model,
    );
    assert_eq!(grads.status().zeros(), 5);
    let grads = unscaled(&scaler(65536.0), model.gradients(gradients), &model);
    assert_eq!(grads.status().zeros(), 0);
}
