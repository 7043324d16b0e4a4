//! One optimizer, one scaler and two losses with shared parameters.

use burn_amp_tests::prelude::*;

use crate::support::{Pair, sgd};

fn losses(model: &Pair) -> (Tensor<1>, Tensor<1>) {
    let (weight, bias) = (model.weight.val(), model.bias.val());
    let first = (weight.clone() - 1.0).square().sum() + bias.sum();
    (first, weight.mul_scalar(0.5).sum())
}

fn start() -> Pair {
    Pair::new(vec![0.25; 6], vec![-0.5; 4], DType::F32)
}

/// The gradients are 2 * (0.25 - 1) + 0.5 and 1.
const EXPECTED: [f32; 10] = [1.25, 1.25, 1.25, 1.25, 1.25, 1.25, -1.5, -1.5, -1.5, -1.5];

#[test]
fn one_backward_pass_through_their_sum() {
    let (mut optim, mut model) = (sgd(), start());
    let (first, second) = losses(&model);
    let grads = optim.backward(first + second, &model);
    model = optim.step(1.0, model, grads);
    assert_eq!(model.values(), EXPECTED);
}

#[test]
fn a_backward_pass_each_and_a_sum_of_scaled_gradients() {
    let (mut optim, mut model) = (sgd(), start());
    let (first, second) = optim.scaler().scale(losses(&model));
    let mut sum = GradientsAccumulator::new();
    for loss in [first, second] {
        sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
    }
    let sum = optim.scaler().scaled(sum.grads()).unwrap();
    model = optim.step(1.0, model, sum);
    assert_eq!(model.values(), EXPECTED);
    assert_eq!(optim.scaler().counters().steps(), 1);
}

#[test]
fn unscaled_apart_to_weigh_or_clip_each() {
    let (mut optim, mut model) = (sgd(), start());
    let (first, second) = losses(&model);
    let first = optim
        .unscale(optim.backward(first, &model), &model)
        .unwrap();
    let second = optim
        .unscale(optim.backward(second, &model), &model)
        .unwrap();
    assert_eq!(second.status().gradients(), 1);
    model = optim.step(1.0, model, first.add(second, 1.0));
    assert_eq!(model.values(), EXPECTED);

    // The other way round: the second knows the weight alone.
    let (mut optim, mut model) = (sgd(), start());
    let (first, second) = losses(&model);
    let first = optim
        .unscale(optim.backward(first, &model), &model)
        .unwrap();
    let second = optim
        .unscale(optim.backward(second, &model), &model)
        .unwrap();
    let sum = second.add(first, 1.0);
    assert_eq!(sum.parameters().count(), 2);
    model = optim.step(1.0, model, sum);
    assert_eq!(model.values(), EXPECTED);
}

#[test]
fn a_sum_overflows_if_one_of_the_two_does() {
    for (bad_first, bad_second) in [(true, false), (false, true), (true, true)] {
        let (mut optim, model) = (sgd(), start());
        let mut grads = |bad| {
            let value = if bad { f32::INFINITY } else { 1.0 };
            let grads = model.gradients([1.0; 6], [1.0, 1.0, value, 1.0], 1024.0);
            optim.unscale(grads, &model).unwrap()
        };
        let sum = grads(bad_first).add(grads(bad_second), 0.5);
        assert!(sum.has_overflow());
        assert_eq!(sum.status().overflow_parameter(), Some("bias"));
        let after = optim.step(1.0, model.clone(), sum);
        assert_eq!(after.values(), model.values());
        assert_eq!(optim.scaler().loss_scale(), 512.0);
    }
}

#[test]
fn a_clone_of_gradients_is_independent() {
    let (mut optim, model) = (sgd(), start());
    let grads = optim
        .unscale(model.gradients([2.0; 6], [4.0; 4], 1024.0), &model)
        .unwrap();
    let copy = grads.clone().mul_scalar(3.0);
    let value = |grads: &burn_amp::UnscaledGradients, id| {
        let grad: Tensor<1> = grads.get(id).unwrap();
        grad.max().into_scalar::<f32>()
    };
    let bias: &Param<Tensor<1>> = &model.bias;
    assert_eq!((value(&grads, bias.id), value(&copy, bias.id)), (4.0, 12.0));
    assert_eq!(copy.status(), grads.status());
}
