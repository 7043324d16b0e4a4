//! Windows whose micro-batches are all finite, and whose sum overflows all the same.

use crate::support::*;

/// f16 gradients, whose sums of three are taken in f32 and rounded to f16 in the end. At the floor of the scale, which has nothing to do
/// with it.
fn trial(max_skips: Option<u32>) -> Trial {
    let scaler = at_scale(1.0).with_min_scale(Some(1.0));
    let scaler = scaler.with_max_consecutive_skips(max_skips);
    let scaler = scaler.with_parameter_dtype_gradients(true);
    let optim = sgd_under(scaler).with_accumulation(windows(3, true).with_sum(true));
    Trial::new(optim).with_dtype(DType::F16)
}

/// A micro-batch with this value in the bias: 40000 is an f16, 120000 is not.
fn micro(value: f64) -> [f64; 10] {
    std::array::from_fn(|index| if index < 6 { 1.0 } else { value })
}

fn window(run: &mut Trial, value: f64) {
    (0..3).for_each(|_| run.step(micro(value)));
}

#[test]
fn a_skipped_window_is_logged() {
    let mut run = trial(None);
    let parts = ["window skipped", "sum", "`bias`"];
    warns_once(parts, || window(&mut run, 40000.0));
    assert_eq!(run.values(), [0.0; 10]);
    assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    assert_eq!((run.counters().skipped(), run.scale()), (1, 1.0));
    no_warning(|| window(&mut run, 1.0));
}

/// A window that steps starts the count anew, and a resume does not.
#[test]
fn too_many_in_a_row_end_the_run() {
    let (mut run, mut resumed) = (trial(Some(1)), trial(Some(1)));
    for step in 1..4 {
        window(&mut run, 40000.0);
        window(&mut run, 1.0);
        assert_eq!(run.values(), [-3.0 * f64::from(step); 10]);
    }
    window(&mut run, 40000.0);
    resumed.optim.load_record(run.optim.to_record()).unwrap();
    let parts = ["loss scale 1 after 2 skipped steps", "`bias`"];
    for mut run in [run, resumed] {
        (0..2).for_each(|_| run.step(micro(40000.0)));
        let error = run.refused(micro(40000.0));
        is_error(&error, "LossScaleExhausted", parts);
        assert_eq!((run.counters().skipped(), run.window()), (5, 0));
    }
}
