//! Mixed models: kept f32 parameters, and frozen ones.

use super::support::*;

/// Real training of a mixed model, through `ScaledOptimizer`. Frozen parameters get no gradient: no step, no master.
#[test]
fn a_mixed_model_learns_and_frozen_parameters_stay() {
    let norm = [ParamGroup::from_predicate("norm")];
    let mut net = net(&flex());
    net.hidden = net.hidden.no_grad();
    let mut net = to_half(net, FloatDType::F16, &norm);
    let before = parameters(&net);
    let mut optim = ScaledOptimizer::new(adam(), at_scale(256.0).init().unwrap());
    let mut losses = Vec::new();
    for _ in 0..30 {
        let input = random::<2>(0, [2, 6], &flex());
        let output = net.forward(input.cast(FloatDType::F16));
        let loss = output.cast(FloatDType::F32).sub_scalar(0.3).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let grads = optim.backward(loss, &net);
        net = optim.step(0.02, net, grads);
    }
    assert!(losses[29] < 0.1 * losses[0], "{losses:?}");
    assert_eq!(optim.scaler().counters().stepped(), 30);
    for (path, after) in parameters(&net) {
        let [hidden, norm] = ["hidden", "norm"].map(|part| path.starts_with(part));
        assert_eq!(after == before[&path], hidden, "{path}");
        let expected = if norm { DType::F32 } else { DType::F16 };
        assert_eq!(after.1.0, expected, "{path}");
        let master = master(optim.optimizer(), &net, &path);
        assert_eq!(master.is_none(), hidden || norm, "{path}");
    }
}
