//! Running statistics: the training's own, and repaired after a forward pass that overflowed, though the optimizer's side knows of the
//! overflow a step late.

use crate::support::*;

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
    norm: BatchNorm,
    head: Linear,
}

impl Net {
    fn loss(&self, amp: &MixedPrecision, input: Tensor<2>) -> Tensor<1> {
        let output = amp.autocast(input, |x| {
            let hidden = in_f32(self.linear.forward(x), |x| self.norm.forward(x));
            self.head.forward(hidden)
        });
        output.square().mean()
    }
}

fn means(net: &Net) -> Vec<f32> {
    burn_amp_tests::values(net.norm.running_mean.value())
}

#[test]
fn statistics_of_a_skipped_iteration_are_set_back() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let mut net = Net {
        linear: LinearConfig::new(4, 4).init(&device),
        norm: BatchNormConfig::new(4).init(&device),
        head: LinearConfig::new(4, 2).init(&device),
    }
    .apply_reparameterization(amp.clone());
    let mut optim = PipelinedOptimizer::new(sgd(&amp), Device::flex()).unwrap();
    let mut was_lost = false;
    // The last iteration overflows: nothing but `synchronize` comes after it.
    for step in 0..35 {
        let input = TensorData::new(values(50 * step, 24), [6, 4]);
        let mut input = Tensor::<2>::from_data(input, &device);
        if step % 10 == 4 {
            // Infinite in f16.
            input = input * 1e6;
        }
        let grads = GradientsParams::from_grads(net.loss(&amp, input).backward(), &net);
        net = optim.step(1e-3, net, grads);
        let valid = net.valid();
        let lost = means(&valid).iter().any(|mean| !mean.is_finite());
        was_lost |= lost;
        // The skip is known with the next step.
        assert!(!lost || step % 10 == 4, "{step}: {:?}", means(&valid));
    }
    assert!(was_lost, "the test tests nothing");
    let net = optim.synchronize(net).unwrap();
    let means = means(&net.valid());
    assert!(means.iter().all(|mean| mean.is_finite()), "{means:?}");
    // They have moved, too: it is the training's own that are kept.
    assert!(means.iter().any(|mean| *mean != 0.0));
    // Four of them, beside those of a first scale that is too high.
    assert!(optim.synchronized_scaler().counters().skipped() >= 4);
}
