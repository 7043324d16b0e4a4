//! One optimizer, one scaler and two losses with shared parameters.

use burn_amp_tests::prelude::*;

use crate::support::{Pair, Trial, sgd};

fn losses(model: &Pair) -> (Tensor<1>, Tensor<1>) {
    let (weight, bias) = (model.weight.val(), model.bias.val());
    let first = (weight.clone() - 1.0).square().sum() + bias.sum();
    (first, weight.mul_scalar(0.5).sum())
}

fn start() -> Trial {
    let model = Pair::new(vec![0.25; 6], vec![-0.5; 4], DType::F32);
    Trial {
        model,
        ..Trial::new(sgd())
    }
}

/// The gradients are 2 * (0.25 - 1) + 0.5 and 1.
const EXPECTED: [f32; 10] = [1.25, 1.25, 1.25, 1.25, 1.25, 1.25, -1.5, -1.5, -1.5, -1.5];

#[test]
fn one_backward_pass_through_their_sum() {
    let mut run = start();
    let (first, second) = losses(&run.model);
    run.take(run.optim.backward(first + second, &run.model));
    assert_eq!(run.values(), EXPECTED);
}

#[test]
fn a_backward_pass_each_and_a_sum_of_scaled_gradients() {
    let mut run = start();
    let (first, second) = run.optim.scaler().scale(losses(&run.model));
    let mut sum = GradientsAccumulator::new();
    for loss in [first, second] {
        let grads = GradientsParams::from_grads(loss.backward(), &run.model);
        sum.accumulate(&run.model, grads);
    }
    run.take(run.optim.scaler().scaled(sum.grads()).unwrap());
    assert_eq!(run.values(), EXPECTED);
    assert_eq!(run.counters().steps(), 1);
}

#[test]
fn unscaled_apart_to_weigh_or_clip_each() {
    // The other way round, too: the second knows the weight alone.
    for turned in [false, true] {
        let mut run = start();
        let (first, second) = losses(&run.model);
        let [first, second] = [first, second].map(|loss| {
            let grads = run.optim.backward(loss, &run.model);
            run.optim.unscale(grads, &run.model).unwrap()
        });
        assert_eq!(second.status().gradients(), 1);
        let sum = match turned {
            false => first.add(second, 1.0),
            true => second.add(first, 1.0),
        };
        assert_eq!(sum.parameters().count(), 2);
        run.take_unscaled(sum);
        assert_eq!(run.values(), EXPECTED);
    }
}

#[test]
fn a_sum_overflows_if_one_of_the_two_does() {
    let fine = ([1.0; 6], [1.0; 4]);
    let bad = ([1.0; 6], [1.0, 1.0, f32::INFINITY, 1.0]);
    for (first, second) in [(bad, fine), (fine, bad), (bad, bad)] {
        let mut run = start();
        let sum = run.unscaled(first).add(run.unscaled(second), 0.5);
        assert!(sum.has_overflow());
        assert_eq!(sum.status().overflow_parameter(), Some("bias"));
        run.take_unscaled(sum);
        assert_eq!(run.values(), start().values());
        assert_eq!(run.scale(), 512.0);
    }
}

#[test]
fn a_clone_of_gradients_is_independent() {
    let grads = start().unscaled(([2.0; 6], [4.0; 4]));
    let copy = grads.clone().mul_scalar(3.0);
    let value = |grads: &UnscaledGradients| {
        let grad: Tensor<1> = grads.get(start().model.bias.id).unwrap();
        grad.max().into_scalar::<f32>()
    };
    assert_eq!((value(&grads), value(&copy)), (4.0, 12.0));
    assert_eq!(copy.status(), grads.status());
}
