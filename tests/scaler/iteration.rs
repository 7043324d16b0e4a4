//! One iteration: `step`, then `update` once.

use super::support::*;

#[test]
fn update_without_a_step_does_nothing() {
    let mut run = Trial::new(GradScalerConfig::new().with_growth_interval(2));
    assert_eq!(run.scaler.update().unwrap(), None);

    run.step(false).unwrap();
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
    let state = |run: &Trial| (run.scaler.schedule(), run.scaler.counters());
    let before = state(&run);
    for _ in 0..3 {
        assert_eq!(run.scaler.update().unwrap(), None);
    }
    assert_eq!(state(&run), before);
    assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
}

fn update_missing(parameter: &str) -> AmpError {
    let parameter = parameter.to_string();
    AmpError::UpdateMissing { parameter }
}

#[test]
fn a_second_step_without_update_is_refused() {
    for overflow in [false, true] {
        let mut run = Trial::at(1024.0);
        run.step(overflow).unwrap();
        let (counters, values) = (run.scaler.counters(), run.model.values());
        for again in [false, true] {
            let error = run.step(again).unwrap_err();
            assert_eq!(error, update_missing("vector"));
            says(
                &error,
                ["`step` has already been called for parameter `vector`"],
            );
            says(&error, ["update"]);
        }
        assert_eq!(run.scaler.counters(), counters);
        assert_eq!(run.model.values(), values);
        // What it tells is not of the step before.
        assert_eq!(run.outcome(), None);

        // After the update it is welcome; the refused ones have left no trace.
        assert_eq!(run.scaler.update().unwrap().unwrap().is_skipped(), overflow);
        run.step(false).unwrap();
    }
}

/// Any parameter in common is a second step for it, be it the first of the module or not.
#[test]
fn a_second_step_of_some_parameters_is_refused() {
    let mut run = Trial::at(1.0);
    run.step(false).unwrap();
    let (mut grads, matrix) = (GradientsParams::new(), run.model.matrix.id);
    gradient(&mut grads, matrix, Model::MATRIX, DType::F32, |_| 1.0);
    let error = run.take(run.unscaled(grads)).unwrap_err();
    assert_eq!(error, update_missing("matrix"));
}

/// A skip is never invisible, whichever way the iteration ends.
#[test]
fn a_skipped_step_is_logged() {
    type End = fn(&mut GradScaler) -> Result<Option<StepOutcome>, AmpError>;
    let ends: [End; 2] = [GradScaler::update, |scaler| scaler.update_to(32768.0)];
    for end in ends {
        let mut run = Trial::at(65536.0);
        let mut messages = |overflow| {
            captured(Level::Info, || {
                run.step(overflow).unwrap();
                assert!(end(&mut run.scaler).unwrap().is_some());
            })
        };
        let expected =
            "step skipped: gradients overflow, first in `matrix`, at loss scale 65536, next 32768";
        assert_eq!(messages(true), [expected]);
        assert_eq!(messages(false), [""; 0]);
    }
}

#[test]
fn a_refused_update_to_does_not_end_the_iteration() {
    let mut run = Trial::new(at_scale(512.0).with_max_scale(Some(65536.0)));
    // Without a step it sets the scale.
    assert_eq!(run.scaler.update_to(65536.0).unwrap(), None);
    run.step(true).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 131072.0] {
        let error = run.scaler.update_to(bad).unwrap_err();
        assert!(matches!(error, AmpError::InvalidValue { .. }), "{error}");
    }
    assert_eq!(run.scale(), 65536.0);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(run.scale(), 32768.0);
}
