//! Gradients of parts of a batch, as several devices compute them: `step_multi` and `sum_of_devices`.

use half::f16;

use crate::support::*;

fn multi(parts: Vec<GradientsParams>) -> MultiGradientsParams {
    let device = Device::flex();
    let grads = parts.into_iter().map(|part| (part, device.clone()));
    MultiGradientsParams {
        grads: grads.collect(),
    }
}

/// Gradients of a loss times `scale` on each of three batches. In step 6 the loss has reached the head on one device only.
fn parts(net: &Net, scale: f32, step: usize, device: &Device) -> Vec<GradientsParams> {
    let part = |part: usize| {
        let loss = net.loss(batch(3 * step + part, device)).mul_scalar(scale);
        let mut grads = GradientsParams::from_grads(loss.backward(), net);
        if step == 6 && part < 2 {
            grads.remove::<2>(net.head.weight.id).unwrap();
        }
        grads
    };
    (0..3).map(part).collect()
}

/// As Burn's own `step_multi` without scaling, bit for bit; an overflow in one part skips the step for all.
#[test]
fn follows_burn_and_skips_on_an_overflow_in_one_part() {
    [false, true].into_iter().for_each(check_against_burn);
}

/// With Burn's own gradients, or with those of a loss that was scaled.
fn check_against_burn(scaled: bool) {
    let device = Device::flex().autodiff();
    let mut net = Net::full(&device);
    let mut plain_net = net.clone();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler());
    let mut plain = AdamConfig::new().init();

    for step in 0..8 {
        let scale = match scaled {
            true => optim.scaler().loss_scale(),
            false => 1.0,
        };
        let mut grads = parts(&net, scale, step, &device);
        let overflowing = match step {
            1 => Some((0, f32::INFINITY)),
            4 => Some((2, f32::NAN)),
            5 => Some((1, f32::NEG_INFINITY)),
            _ => None,
        };
        if let Some((part, value)) = overflowing {
            let poison = gradient("stem.bias", value);
            let part = &mut grads[part];
            *part = poison.gradients(std::mem::take(part), &net);
        }
        net = match scaled {
            true => {
                let sum = sum_of_devices(multi(grads), &net);
                let sum = scaled_by_hand(optim.scaler(), sum);
                optim.step(0.01, net, sum)
            }
            false => optim.step_multi(0.01, net, multi(grads)).unwrap(),
        };

        let expected = outcome(overflowing.is_some());
        assert_eq!(optim.scaler().last_outcome(), Some(expected), "step {step}");
        let status = optim.scaler().last_status().unwrap();
        assert_eq!(status.gradients(), 6, "step {step}");
        if overflowing.is_some() {
            assert_eq!(status.overflow_parameter(), Some("stem.bias"));
        } else {
            let grads = parts(&plain_net, 1.0, step, &device);
            plain_net = plain.step_multi(0.01, plain_net, multi(grads));
        }
        assert!(parameters(&net) == parameters(&plain_net), "step {step}");
        assert_eq!(state(optim.optimizer()), state(&plain), "step {step}");
    }
    assert_eq!(optim.scaler().counters().skipped(), 3);
}

/// Each part fits into f16, and their sum does not: it must not be taken there.
#[test]
fn half_precision_parts_are_summed_in_full_precision() {
    let device = Device::flex();
    let values = TensorData::new(vec![f16::ONE; 2], [2]);
    let values = Tensor::from_data(values, (&device.clone().autodiff(), DType::F16));
    let half = Param::<Tensor<1>>::from_tensor(values);
    let part = |id: ParamId| {
        let values = TensorData::new(vec![f16::from_f32(60000.0), f16::from_f32(0.5)], [2]);
        let mut grads = GradientsParams::new();
        grads.register(id, Tensor::<1>::from_data(values, (&device, DType::F16)));
        grads
    };
    let config = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), config.init().unwrap());
    let id = half.id;
    let sum = sum_of_devices(multi(vec![part(id), part(id)]), &half);
    let sum = scaled_by_hand(optim.scaler(), sum);
    let half = optim.step(1.0, half, sum);

    let status = optim.scaler().last_status().unwrap();
    assert!(!status.has_overflow());
    let expected = f64::from(f16::from_f32(120000.0 / 65536.0).to_f32());
    assert_eq!(status.max_abs(), expected);
    let value = half.val().to_data().iter::<f32>().next().unwrap();
    assert_eq!(value, f16::from_f64(1.0 - expected).to_f32());
}
