//! Windows whose micro-batches are all clean, and whose sum overflows all the same.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{only, says};
use log::Level;

use crate::support::{Pair, captured};

/// f16 gradients, whose sums of three are taken in f32 and rounded to f16 in the end.
fn optimizer(max_skips: Option<u32>) -> ScaledOptimizer<ModuleOptimizer> {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_max_consecutive_skips(max_skips)
        .with_parameter_dtype_gradients(true);
    let window = AccumulationConfig::new(3)
        .with_skip_micro_batch(true)
        .with_sum(true);
    ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap())
        .with_accumulation(window)
        .unwrap()
}

/// Three micro-batches: 40000 is an f16, 120000 is not.
fn window(
    optim: &mut ScaledOptimizer<ModuleOptimizer>,
    model: &Pair,
    value: f32,
) -> Result<Pair, AmpError> {
    let mut stepped = model.clone();
    for _ in 0..3 {
        let grads = model.gradients([1.0; 6], [value; 4], 1.0);
        stepped = optim.try_step(1.0, stepped, grads)?;
    }
    Ok(stepped)
}

#[test]
fn a_skipped_window_is_logged() {
    let mut optim = optimizer(None);
    let model = Pair::zeros(DType::F16);
    let messages = captured(Level::Warn, || {
        let same = window(&mut optim, &model, 40000.0).unwrap();
        assert_eq!(same.values(), [0.0; 10]);
    });
    says(only(&messages), ["window skipped", "sum", "`bias`"]);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(optim.scaler().counters().skipped(), 1);
    assert_eq!(optim.scaler().loss_scale(), 1.0);

    let messages = captured(Level::Warn, || {
        window(&mut optim, &model, 1.0).unwrap();
    });
    assert!(messages.is_empty(), "{messages:?}");
}

#[test]
fn too_many_in_a_row_end_the_run() {
    let mut optim = optimizer(Some(2));
    let model = Pair::zeros(DType::F16);
    for _ in 0..2 {
        window(&mut optim, &model, 40000.0).unwrap();
    }
    let error = window(&mut optim, &model, 40000.0).unwrap_err();
    let AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((scale, skips, parameter.as_str()), (1.0, 3, "bias"));
    assert_eq!(optim.scaler().counters().skipped(), 3);
    assert!(optim.window().unwrap().is_empty());
}

#[test]
fn a_window_that_steps_starts_the_count_anew() {
    let mut optim = optimizer(Some(1));
    let model = Pair::zeros(DType::F16);
    for _ in 0..3 {
        window(&mut optim, &model, 40000.0).unwrap();
        let moved = window(&mut optim, &model, 1.0).unwrap();
        assert_eq!(moved.values(), [-3.0; 10]);
    }
    window(&mut optim, &model, 40000.0).unwrap();
    assert!(window(&mut optim, &model, 40000.0).is_err());
}

#[test]
fn the_count_goes_on_after_a_resume() {
    let mut optim = optimizer(Some(1));
    let model = Pair::zeros(DType::F16);
    window(&mut optim, &model, 40000.0).unwrap();
    let mut resumed = optimizer(Some(1));
    resumed.from_bytes(optim.into_bytes().unwrap()).unwrap();
    assert!(window(&mut resumed, &model, 40000.0).is_err());
}

#[test]
fn the_floor_of_the_scale_has_nothing_to_do_with_it() {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_min_scale(Some(1.0))
        .with_parameter_dtype_gradients(true);
    let mut optim = optimizer(None);
    *optim.scaler_mut() = scaler.init().unwrap();
    let model = Pair::zeros(DType::F16);
    let same = window(&mut optim, &model, 40000.0).unwrap();
    assert_eq!(same.values(), [0.0; 10]);
}
