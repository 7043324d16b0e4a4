//! A skipped step leaves parameters and optimizer state exactly as they were, on the device that the features choose.

use crate::support::*;

const PATHS: [&str; 6] = [
    "stem.weight",
    "stem.bias",
    "hidden.weight",
    "hidden.bias",
    "head.weight",
    "head.bias",
];

#[test]
fn whatever_overflows_and_wherever() {
    let device = Device::default().autodiff();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler());
    // A finite step first, so that there is a state to keep.
    let mut net = scaled_step(&mut optim, Net::full(&device), 0);
    let before = (parameters(&net), state(optim.optimizer()));
    assert!(!before.1.tensors.is_empty());
    let mut scale = optim.scaler().loss_scale();

    let clean = |net: &Net| {
        let loss = net.loss(batch(1, &device));
        GradientsParams::from_grads(loss.backward(), net)
    };
    for path in PATHS {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            // The decision is made when gradients are unscaled: whoever replaces the bad value then does not undo it.
            for is_repaired in [false, true] {
                let at = format!("{value} in {path}, {is_repaired}");
                let grads = gradient(path, value).gradients(clean(&net), &net);
                let grads = scaled_by_hand(optim.scaler(), grads);
                net = if is_repaired {
                    let mut grads = optim.unscale(grads, &net).unwrap();
                    assert!(grads.has_overflow(), "{at}");
                    *grads.params_mut() = clean(&net);
                    optim.step(0.01, net, grads)
                } else {
                    optim.step(0.01, net, grads)
                };

                let scaler = optim.scaler();
                assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped), "{at}");
                let status = scaler.last_status().unwrap();
                assert_eq!(status.overflow_parameter(), Some(path));
                assert_eq!(status.non_finite(), 1, "{at}");
                assert_eq!(scaler.loss_scale(), scale / 2.0, "{at}");
                scale = scaler.loss_scale();
                let after = (parameters(&net), state(optim.optimizer()));
                assert!(before == after, "{at}");
            }
        }
    }
    assert_eq!(optim.scaler().counters().skipped(), 36);
    // And it goes on: gradients are still tracked.
    let net = scaled_step(&mut optim, net, 1);
    assert_eq!(optim.scaler().last_status().unwrap().gradients(), 6);
    let after = parameters(&net);
    let mut pairs = before.0.iter().zip(&after);
    assert!(pairs.all(|(before, after)| before != after));
    assert_eq!(net.num_params(), Net::full(&device).num_params());
}
