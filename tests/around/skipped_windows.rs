//! Windows whose micro-batches are all clean, and whose sum overflows all the same.

use crate::support::*;

/// f16 gradients, whose sums of three are taken in f32 and rounded to f16 in the end. At the floor of the scale, which has nothing to do
/// with it.
fn trial(max_skips: Option<u32>) -> Trial {
    let scaler = at_scale(1.0)
        .with_min_scale(Some(1.0))
        .with_max_consecutive_skips(max_skips)
        .with_parameter_dtype_gradients(true);
    let window = AccumulationConfig::new(3).with_skip_micro_batch(true);
    let optim = sgd_under(scaler).with_accumulation(window.with_sum(true));
    Trial::new(optim).with_dtype(DType::F16)
}

impl Trial {
    /// Three micro-batches: 40000 is an f16, 120000 is not.
    fn window(&mut self, value: f32) {
        (0..3).for_each(|_| self.step(([1.0; 6], [value; 4])));
    }
}

#[test]
fn a_skipped_window_is_logged() {
    let mut run = trial(None);
    let messages = captured(Level::Warn, || run.window(40000.0));
    assert_eq!(run.values(), [0.0; 10]);
    says(only(&messages), ["window skipped", "sum", "`bias`"]);
    assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    assert_eq!((run.counters().skipped(), run.scale()), (1, 1.0));

    let messages = captured(Level::Warn, || run.window(1.0));
    assert!(messages.is_empty(), "{messages:?}");
}

/// A window that steps starts the count anew, and a resume does not.
#[test]
fn too_many_in_a_row_end_the_run() {
    let (mut run, mut resumed) = (trial(Some(1)), trial(Some(1)));
    for _ in 0..3 {
        let before = run.values()[0];
        run.window(40000.0);
        run.window(1.0);
        assert_eq!(run.values(), [before - 3.0; 10]);
    }
    run.window(40000.0);
    let bytes = run.optim.into_bytes().unwrap();
    resumed.optim.from_bytes(bytes).unwrap();
    let expected = AmpError::LossScaleExhausted {
        scale: 1.0,
        skips: 2,
        parameter: "bias".to_string(),
    };
    for mut run in [run, resumed] {
        let values = ([1.0; 6], [40000.0; 4]);
        (0..2).for_each(|_| run.step(values));
        assert_eq!(run.refused(values), expected);
        assert_eq!((run.counters().skipped(), run.len()), (5, 0));
    }
}
