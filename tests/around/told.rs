//! What the scaler tells of clipping.

use burn_amp_tests::prelude::*;

use crate::support::{Trial, all, sgd};

#[test]
fn clipping_is_there_with_the_smallest_coefficient() {
    let clip = GradientClip::GlobalNorm(1.0);
    let bias = ParamGroup::from_predicate("bias");
    let grouped = sgd().with_group_clipping(bias, clip).unwrap();
    let mut run = Trial::new(grouped.with_clipping(clip).unwrap());
    assert!(run.optim.scaler().last_status().is_none());

    let gradient = |bias| ([0.5, 0.0, 0.0, 0.0, 0.0, 0.0], [bias, 0.0, 0.0, 0.0]);
    for (values, coefficient, clipped) in [
        (gradient(4.0), Some(1.0 / (4.0 + 1e-6)), Some(1)),
        (gradient(0.5), Some(1.0), Some(0)),
        // A skipped step is not clipped.
        (all(f32::NAN), None, None),
    ] {
        run.step(values);
        let status = run.status();
        assert_eq!(status.clip_coefficient(), coefficient);
        assert_eq!(status.clipped(), clipped);
    }
    // Nor is there a coefficient where no group has a global norm.
    let mut run = Trial::new(sgd().with_clipping(GradientClip::Value(1.0)).unwrap());
    run.step(gradient(4.0));
    assert_eq!(run.status().clip_coefficient(), None);
    assert_eq!(run.status().clipped(), Some(1));
}
