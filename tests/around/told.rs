//! What the scaler tells of clipping.

use burn_amp_tests::prelude::*;

use crate::support::{Pair, sgd};

const BAD: [f32; 6] = [f32::NAN; 6];

#[test]
fn clipping_is_there_with_the_smallest_coefficient() {
    let clip = GradientClip::GlobalNorm(1.0);
    let mut optim = sgd()
        .with_clipping(clip)
        .unwrap()
        .with_group_clipping(ParamGroup::from_predicate("bias"), clip)
        .unwrap();
    assert!(optim.scaler().last_status().is_none());

    let model = Pair::zeros(DType::F32);
    let one = |value: f32| [value, 0.0, 0.0, 0.0];
    let weight = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0];
    for (bias, coefficient, clipped) in [(4.0, 1.0 / (4.0 + 1e-6), 1), (0.5, 1.0, 0)] {
        let scale = optim.scaler().loss_scale();
        optim.step(
            1.0,
            model.clone(),
            model.gradients(weight, one(bias), scale),
        );
        let status = optim.scaler().last_status().unwrap();
        assert_eq!(status.clip_coefficient(), Some(coefficient));
        assert_eq!(status.clipped(), Some(clipped));
    }
    // A skipped step is not clipped.
    let scale = optim.scaler().loss_scale();
    optim.step(1.0, model.clone(), model.gradients(BAD, one(4.0), scale));
    let status = optim.scaler().last_status().unwrap();
    assert_eq!(status.clip_coefficient(), None);

    // Nor is there a coefficient where no group has a global norm.
    let mut optim = sgd().with_clipping(GradientClip::Value(1.0)).unwrap();
    optim.step(
        1.0,
        model.clone(),
        model.gradients(weight, one(4.0), 1024.0),
    );
    let status = optim.scaler().last_status().unwrap();
    assert_eq!(status.clip_coefficient(), None);
    assert_eq!(status.clipped(), Some(1));
}
