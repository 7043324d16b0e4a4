//! One optimizer, one scaler and two losses with shared parameters.

use crate::support::*;

/// Their gradients at a value of 0.25 are 2 * (0.25 - 1) + 0.5 and 1.
fn losses(model: &Pair) -> (Tensor<1>, Tensor<1>) {
    let (weight, bias) = (model.weight.val(), model.bias.val());
    let first = (weight.clone() - 1.0).square().sum() + bias.sum();
    (first, weight.mul_scalar(0.5).sum())
}

/// One backward pass through their sum; one each, and a sum of scaled gradients; or unscaled separately, to weigh or clip each.
#[test]
fn scaled_by_one_scale() {
    let ways: [fn(&mut Trial); 4] = [
        |run| {
            let (first, second) = losses(&run.model);
            run.take(run.backward(first + second));
        },
        |run| {
            let (first, second) = run.optim.scaler().scale(losses(&run.model));
            let mut sum = GradientsAccumulator::new();
            for loss in [first, second] {
                let grads = GradientsParams::from_grads(loss.backward(), &run.model);
                sum.accumulate(&run.model, grads);
            }
            run.take(run.optim.scaler().scaled(sum.grads()).unwrap());
        },
        |run| {
            let [first, second] = separately(run);
            run.take(first + second);
        },
        // The other way round, too: the second knows the weight alone.
        |run| {
            let [first, second] = separately(run);
            assert_eq!(second.status().gradients(), 1);
            let sum = second + first;
            assert_eq!(sum.parameters().count(), 2);
            run.take(sum);
        },
    ];
    for way in ways {
        let mut run = Trial::new(sgd()).with_value(0.25);
        way(&mut run);
        assert_eq!(run.values(), [&[1.25; 6][..], &[-0.75; 4]].concat());
        assert_eq!(run.counters().steps(), 1);
    }
}

fn separately(run: &mut Trial) -> [UnscaledGradients; 2] {
    let (first, second) = losses(&run.model);
    [first, second].map(|loss| {
        let grads = run.backward(loss);
        run.optim.unscale(grads, &run.model).unwrap()
    })
}
