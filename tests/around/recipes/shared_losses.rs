//! One optimizer, one scaler and two losses with shared parameters.

use crate::support::*;

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

/// One backward pass through their sum; or one each, and a sum of scaled gradients.
#[test]
fn scaled_by_one_scale() {
    let [mut at_once, mut each] = [start(), start()];
    let (first, second) = losses(&at_once.model);
    at_once.take(at_once.optim.backward(first + second, &at_once.model));

    let (first, second) = each.optim.scaler().scale(losses(&each.model));
    let mut sum = GradientsAccumulator::new();
    for loss in [first, second] {
        let grads = GradientsParams::from_grads(loss.backward(), &each.model);
        sum.accumulate(&each.model, grads);
    }
    each.take(each.optim.scaler().scaled(sum.grads()).unwrap());
    for run in [at_once, each] {
        assert_eq!(run.values(), EXPECTED);
        assert_eq!(run.counters().steps(), 1);
    }
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
            false => first + second,
            true => second + first,
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
        let sum = run.unscaled(first).add_weighted(run.unscaled(second), 0.5);
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
