//! Running statistics: the training's own, and repaired after a forward pass that overflowed, though the optimizer's side knows of the
//! overflow a step late.

use crate::support::*;

/// The running means that a validation sees.
fn means(net: &(Linear, BatchNorm, Linear)) -> Vec<f32> {
    burn_amp_tests::values(net.1.valid().running_mean.value())
}

#[test]
fn statistics_of_a_skipped_iteration_are_set_back() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let [first, last] = [4, 2].map(|outputs| LinearConfig::new(4, outputs).init(&device));
    let norm = BatchNormConfig::new(4).init(&device);
    let mut net = amp.attach((first, norm, last));
    let mut optim = PipelinedOptimizer::new(sgd(&amp), Device::flex()).unwrap();
    let mut was_lost = false;
    // The last iteration overflows: nothing but `synchronize` comes after it.
    for step in 0..35 {
        let input = TensorData::new(values(50 * step, 24), [6, 4]);
        // Infinite in f16.
        let factor = if step % 10 == 4 { 1e6 } else { 1.0 };
        let input = Tensor::<2>::from_data(input, &device) * factor;
        let output = amp.autocast(input, |x| {
            let hidden = in_f32(net.0.forward(x), |x| net.1.forward(x));
            net.2.forward(hidden)
        });
        let loss = output.square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optim.step(1e-3, net, grads);
        let lost = means(&net).iter().any(|mean| !mean.is_finite());
        was_lost |= lost;
        // The skip is known with the next step.
        assert!(!lost || step % 10 == 4, "{step}: {:?}", means(&net));
    }
    assert!(was_lost, "the test tests nothing");
    let net = optim.synchronize(net).unwrap();
    let means = means(&net);
    assert!(means.iter().all(|mean| mean.is_finite()), "{means:?}");
    // They have moved, too: it is the training's own that are kept.
    assert!(means.iter().any(|mean| *mean != 0.0));
    // Four of them, beside those of a first scale that is too high.
    assert!(optim.synchronized_scaler().counters().skipped() >= 4);
}
