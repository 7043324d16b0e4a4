//! The order of a step: accumulate (scaled), unscale, test, clip, step or skip, average the weights, update the scale.

use crate::support::*;

/// With this first value in the bias's.
fn gradient(bias: f32) -> Values {
    ([3.0, 0.0, 0.0, 0.0, 0.0, 0.0], [bias, 0.0, 0.0, 0.0])
}

#[test]
fn each_part_sees_what_the_one_before_has_made() {
    let optim = sgd().with_accumulation(2);
    let optim = optim.with_clipping(GradientClip::GlobalNorm(1.0));
    let optim = optim.with_ema(EmaConfig::new().with_momentum(0.5));
    let mut run = Trial::new(optim);
    let state = |run: &Trial| (run.scale(), run.values(), run.averages());
    // Micro-batches of norm 5 and 5, whose mean has norm 4 or 3: clipped one by one they would give another mean.
    for (first, second) in [(4.0, -4.0), (4.0, 4.0)] {
        let before = state(&run);
        run.step(gradient(first));
        // The scale is frozen, nothing has moved.
        assert_eq!(state(&run), before);

        run.step(gradient(second));
        let mean = (3.0, (first + second) / 2.0);
        let norm = f32::hypot(mean.0, mean.1);
        assert_eq!(run.status().norm(), f64::from(norm));
        let (start, end) = (before.1, run.values());
        let moved = (start[0] - end[0], start[6] - end[6]);
        assert!((moved.0 - mean.0 / norm).abs() < 1e-6, "{moved:?}");
        assert!((moved.1 - mean.1 / norm).abs() < 1e-6, "{moved:?}");
    }
    // The average is that of the clipped steps' results, -1 and -1.6; the scale has grown after two of them.
    let average = run.averages()[0];
    assert!((average + 1.3).abs() < 1e-6, "{average}");
    assert_eq!(run.scale(), 2048.0);

    // An overflow: nothing is clipped, stepped or averaged, and the scale moves.
    let before = (run.values(), run.optim.ema().unwrap().updates());
    run.step(gradient(1.0));
    run.step(gradient(f32::INFINITY));
    assert_eq!((run.values(), run.optim.ema().unwrap().updates()), before);
    assert_eq!(run.status().clipped(), None);
    assert_eq!(run.scale(), 1024.0);
}
