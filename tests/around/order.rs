//! The order of a step: accumulate (scaled), unscale, test, clip, step or skip, average the weights, update the scale.

use burn_amp_tests::prelude::*;

use crate::support::{Pair, sgd};

const GRADIENT: [f32; 6] = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0];

fn bias(value: f32) -> [f32; 4] {
    [value, 0.0, 0.0, 0.0]
}

#[test]
fn each_part_sees_what_the_one_before_has_made() {
    let mut optim = sgd()
        .with_accumulation(2)
        .unwrap()
        .with_clipping(GradientClip::GlobalNorm(1.0))
        .unwrap()
        .with_ema(EmaConfig::new().with_momentum(0.5))
        .unwrap();
    let mut model = Pair::zeros(DType::F32);
    // Micro-batches of norm 5 and 5, whose mean has norm 4 or 3: clipped one by one they would give another mean.
    for (first, second) in [(4.0, -4.0), (4.0, 4.0)] {
        let (start, scale) = (model.values(), optim.scaler().loss_scale());
        let averaged = optim.ema().unwrap().module(&model).values();
        model = optim.step(
            1.0,
            model.clone(),
            model.gradients(GRADIENT, bias(first), scale),
        );
        // The scale is frozen, nothing has moved.
        assert_eq!(optim.scaler().loss_scale(), scale);
        assert_eq!(model.values(), start);
        assert_eq!(optim.ema().unwrap().module(&model).values(), averaged);

        model = optim.step(
            1.0,
            model.clone(),
            model.gradients(GRADIENT, bias(second), scale),
        );
        let mean = (3.0, (first + second) / 2.0);
        let norm = f32::hypot(mean.0, mean.1);
        let status = optim.scaler().last_status().unwrap();
        assert_eq!(status.norm(), f64::from(norm));
        let moved = (start[0] - model.values()[0], start[6] - model.values()[6]);
        assert!((moved.0 - mean.0 / norm).abs() < 1e-6, "{moved:?}");
        assert!((moved.1 - mean.1 / norm).abs() < 1e-6, "{moved:?}");
    }
    // The average is that of the clipped steps' results, -1 and -1.6; the scale has grown after two of them.
    let average = optim.ema().unwrap().module(&model).values()[0];
    assert!((average + 1.3).abs() < 1e-6, "{average}");
    assert_eq!(optim.scaler().loss_scale(), 2048.0);

    // An overflow: nothing is clipped, stepped or averaged, and the scale moves.
    let (before, updates) = (model.values(), optim.ema().unwrap().updates());
    for value in [1.0, f32::INFINITY] {
        model = optim.step(
            1.0,
            model.clone(),
            model.gradients(GRADIENT, bias(value), 2048.0),
        );
    }
    assert_eq!(model.values(), before);
    assert_eq!(optim.ema().unwrap().updates(), updates);
    assert_eq!(optim.scaler().last_status().unwrap().clipped(), None);
    assert_eq!(optim.scaler().loss_scale(), 1024.0);
}
