//! What does not fit into a window, and what ends a run.

use super::*;

#[test]
fn too_many_dropped_in_a_row_end_the_run_and_keep_the_window() {
    let scaler = at_scale(1024.0).with_max_consecutive_skips(Some(2));
    let mut run = Trial::new(sgd_under(scaler).with_accumulation(windows(3, true)));
    play(&mut run, "0 x x");
    let parts = ["loss scale 256 after 3 skipped steps", "`bias`"];
    is_error(&run.refused(BAD), "LossScaleExhausted", parts);
    assert_eq!((run.counters().dropped(), run.window()), (3, 1));
}

#[test]
fn what_the_optimizer_cannot_take_is_refused_at_the_first_micro_batch() {
    for rule in RULES {
        let mut run = window(2, rule).with_dtype(DType::F16);
        let error = run.refused(ONES);
        is_error(&error, "HalfPrecisionParameter", ["`weight`"]);
        assert_eq!((run.window(), run.counters().steps()), (0, 0));
    }
}

/// The same parameters in another shape or dtype: neither a micro-batch nor a flush takes them.
#[test]
fn a_window_of_another_model_is_refused_and_stays() {
    let of_f32 = Pair::of(0.0);
    let mut turned = of_f32.clone();
    turned.weight = turned.weight.map(|weight| weight.reshape([3, 2]));
    for rule in RULES {
        for (dtype, other, part) in [
            (DType::F32, &turned, "another model"),
            (DType::F64, &of_f32, "F64"),
        ] {
            let mut run = window(3, rule).with_dtype(dtype);
            run.step(ONES);
            let grads = gradients(other, 0, 1.0, FloatDType::F32);
            let stepped = run.optim.try_step(1.0, other.clone(), grads);
            let flushed = run.optim.try_flush(1.0, other.clone());
            for failed in [stepped, flushed] {
                let error = failed.unwrap_err().error;
                is_error(&error, "ForeignRecord", ["`weight`", part]);
            }
            assert_eq!((run.window(), run.counters().dropped()), (1, 0));
            run.flush();
            assert_eq!(run.values(), [-1.0; 10]);
        }
    }
}

#[test]
fn gradients_of_no_parameter_are_dropped_and_logged() {
    let mut scaler = sgd().scaler().clone();
    let mut window = windows(3, false).init().unwrap();
    let grads = Pair::of(0.0).scaled(ONES, 1024.0);
    let stranger = LinearConfig::new(2, 2).init(&device());
    let logged = captured(Level::Debug, || {
        let full = scaler.accumulate(&mut window, grads, &stranger);
        assert!(full.unwrap().is_none());
    });
    says(&logged.join("\n"), ["2 gradients belong to no parameter"]);
    assert_eq!((window.len(), window.gradients()), (1, 0));
}
