//! The dtype in which gradients come out, and what becomes of parameters in half precision.

use super::support::*;

fn in_parameters_dtype(scale: f64) -> GradScalerConfig {
    at_scale(scale).with_parameter_dtype_gradients(true)
}

fn trial(dtype: DType, config: GradScalerConfig) -> Trial {
    Trial::of(Model::of(dtype), config).with_momentum()
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
        let mut run = trial(dtype, at_scale(1024.0));
        let error = run.step(false).unwrap_err();
        let expected = AmpError::HalfPrecisionParameter {
            parameter: "vector".to_string(),
            parameter_dtype: dtype,
            gradient_dtype: DType::F32,
        };
        assert_eq!(error, expected);
        let start = format!("parameter `vector` is {dtype:?} but its unscaled gradient is F32");
        let ways_out = [
            "MasterWeights",
            "MixedPrecision",
            "parameter_dtype_gradients",
        ];
        says(&error, [start.as_str()]);
        says(&error, ways_out);

        assert!(run.optim.to_record().is_empty());
        assert_eq!(run.scaler.counters().steps(), 0);
        assert_eq!(run.outcome(), None);
        assert_eq!(run.scaler.last_status(), None);
        assert_eq!(run.scaler.update().unwrap(), None);
        assert_eq!(run.scaler.growth_tracker(), 0);
        assert_eq!(run.model.values(), [1.0; Model::VALUES]);
    }
}

/// One half-precision parameter among others is found wherever it is; without a gradient it is no obstacle.
#[test]
fn one_half_precision_parameter_among_others() {
    #[derive(Module, Debug)]
    struct Mixed {
        full: Model,
        half: Param<Tensor<1>>,
    }

    let half = Tensor::ones([2], (&Device::flex().autodiff(), DType::BF16));
    let half = Param::from_tensor(half);
    let module = Mixed {
        full: Model::new(),
        half: half.clone(),
    };
    let mut run = Trial::of(module, GradScalerConfig::new());
    let clean = |run: &Trial<Mixed>| run.model.full.gradients(|_| 0.5);
    run.iterate_with(clean(&run));

    let mut grads = clean(&run);
    gradient(&mut grads, half.id, [2], DType::BF16, |_| 1.0);
    let error = run.take(run.unscaled(grads)).unwrap_err();
    says(&error, ["`half`"]);
}

#[test]
fn gradients_in_the_parameters_dtype_are_stepped_on() {
    for dtype in [DType::F16, DType::BF16] {
        let mut run = trial(dtype, in_parameters_dtype(1024.0));
        let grads = run.grads(false);
        assert_eq!(grads.get::<2>(run.model.matrix.id).unwrap().dtype(), dtype);
        run.take(grads).unwrap();
        assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
        assert_eq!(run.model.matrix.val().dtype(), dtype);
        assert_eq!(run.model.values(), [0.75; Model::VALUES]);
    }
    // Wider parameters keep their gradients.
    for dtype in [DType::F32, DType::F64] {
        let run = trial(dtype, in_parameters_dtype(2.0));
        let matrix = run.grads(false).get::<2>(run.model.matrix.id);
        assert_eq!(matrix.unwrap().dtype(), dtype);
    }
}

/// 60000 fits into f16; divided by a scale of 1/16 it no longer does.
#[test]
fn overflow_by_rounding_is_an_overflow() {
    let mut run = trial(DType::F16, in_parameters_dtype(0.0625));
    let value = |index| if index == 20 { 60000.0 } else { 1.0 };
    let grads = run.unscaled(run.model.gradients(value));
    assert_eq!(grads.status().non_finite(), 1);
    assert_eq!(grads.status().overflow_parameter(), Some("kernel"));
    assert_eq!(grads.status().max_abs(), 16.0);
    run.take(grads).unwrap();
    assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    assert_eq!(run.model.values(), [1.0; Model::VALUES]);

    let full = unscaled(&scaler(0.0625), run.model.gradients(value), &run.model);
    assert!(!full.has_overflow());
    assert_eq!(full.status().max_abs(), 960000.0);
}

/// What rounding to the parameter's dtype loses shows in the status.
#[test]
fn underflow_by_rounding_shows() {
    let model = Model::of(DType::F16);
    let gradients = |index| if index < 5 { 2f64.powi(-14) } else { 1.0 };
    let rounding = in_parameters_dtype(65536.0).init().unwrap();
    for (scaler, zeros) in [(rounding, 5), (scaler(65536.0), 0)] {
        let grads = unscaled(&scaler, model.gradients(gradients), &model);
        assert_eq!(grads.status().zeros(), zeros);
    }
}
