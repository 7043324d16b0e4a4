//! What the monitor shows of clipping, dropped micro-batches and discarded gradients.

use burn::{module::ParamGroup, tensor::DType};
use burn_amp::{AccumulationConfig, GradientClip};

use crate::support::{Pair, sgd};

const BAD: [f32; 6] = [f32::NAN; 6];

#[test]
fn a_discard_shows_at_once() {
    let mut optim = sgd();
    let monitor = optim.monitor();
    let model = Pair::zeros(DType::F32);
    let grads = optim.unscale(model.gradients(BAD, [1.0; 4], 1024.0), &model);
    optim.discard(grads);
    let last = monitor.last();
    assert_eq!((last.loss_scale, last.discarded, last.steps), (512.0, 1, 0));
    assert_eq!(last.outcome, None);
    optim.discard(model.gradients(BAD, [1.0; 4], 512.0));
    let last = monitor.last();
    assert_eq!((last.loss_scale, last.discarded), (512.0, 2));
}

#[test]
fn dropped_micro_batches_are_counted() {
    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let mut optim = sgd().with_accumulation(window).unwrap();
    let monitor = optim.monitor();
    let mut model = Pair::zeros(DType::F32);
    for dropped in 1..=2 {
        let scale = optim.scaler().loss_scale();
        let grads = model.gradients(BAD, [1.0; 4], scale);
        model = optim.step(1.0, model, grads);
        assert_eq!((monitor.last().dropped, monitor.last().steps), (dropped, 0));
    }
}

#[test]
fn clipping_is_there_with_the_smallest_coefficient() {
    let clip = GradientClip::GlobalNorm(1.0);
    let mut optim = sgd()
        .with_clipping(clip)
        .unwrap()
        .with_group_clipping(ParamGroup::from_predicate("bias"), clip)
        .unwrap();
    let monitor = optim.monitor();
    assert_eq!(monitor.last().clip_coefficient, None);
    assert_eq!(monitor.last().clipped_gradients, None);

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
        let last = monitor.last();
        assert_eq!(last.clip_coefficient, Some(coefficient));
        assert_eq!(last.clipped_gradients, Some(clipped));
    }
    // A skipped step is not clipped.
    let scale = optim.scaler().loss_scale();
    optim.step(1.0, model.clone(), model.gradients(BAD, one(4.0), scale));
    assert_eq!(monitor.last().clip_coefficient, None);

    // Nor is there a coefficient where no group has a global norm.
    let mut optim = sgd().with_clipping(GradientClip::Value(1.0)).unwrap();
    optim.step(
        1.0,
        model.clone(),
        model.gradients(weight, one(4.0), 1024.0),
    );
    let last = optim.monitor().last();
    assert_eq!(
        (last.clip_coefficient, last.clipped_gradients),
        (None, Some(1))
    );
}
