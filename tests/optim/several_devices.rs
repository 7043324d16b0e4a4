//! Steps with gradients of several devices.

use half::f16;

use crate::support::*;

/// It may go to another thread.
const _: fn() = || {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
};

/// Before there is any state, and later, twice in a row.
const BAD_STEPS: [usize; 6] = [0, 3, 5, 6, 11, 14];

/// As Burn's own `step_multi` and as the sum of the parts, bit for bit; an overflow in one part skips the step for all. A loss may have reached
/// the head on one device only.
#[test]
fn parts_of_several_devices_are_one_step() {
    let mut nets = [(); 3].map(|()| Net::new(&flex()));
    let adam = || AdamConfig::new().init();
    let mut optims = [(); 2].map(|()| ScaledOptimizer::new(adam(), default_scaler()));
    let mut plain = adam();
    for step in 0..16 {
        let is_bad = BAD_STEPS.contains(&step);
        let parts = |net: &Net| {
            let [first, mut bad, mut last] = [0, 100, 200].map(|from| by_hand(net, from + step));
            if is_bad {
                let id = [net.hidden.weight.id, net.head.weight.id][step % 2];
                let grad = bad.remove::<2>(id).unwrap();
                let infinite = Tensor::full([1, 1], f32::INFINITY, &grad.device());
                bad.register(id, grad.slice_assign([0..1, 1..2], infinite));
            }
            if step == 7 {
                last.remove::<2>(net.head.weight.id).unwrap();
            }
            multi(&flex(), vec![first, bad, last])
        };
        let [of_multi, of_sum, of_plain] = nets.each_ref().map(parts);
        let [multi, sum, net] = nets;
        let of_sum = sum_of_devices(of_sum, &sum);
        let net = match is_bad {
            true => net,
            false => plain.step_multi(0.01, net, of_plain),
        };
        let multi = optims[0].step_multi(0.01, multi, of_multi).unwrap();
        let sum = optims[1].step(0.01, sum, of_sum);
        nets = [multi, sum, net];
        let [multi, sum, plain] = nets.each_ref().map(parameters);
        assert!(multi == plain && sum == plain, "step {step}");
    }
    for optim in optims {
        assert_eq!(state(optim.optimizer()), state(&plain));
    }
}

/// Each part fits into f16, and their sum does not: it must not be taken there.
#[test]
fn half_precision_parts_are_summed_in_full_precision() {
    let config = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let mut run = Trial::new(sgd_under(config)).with_dtype(DType::F16);
    let part = || run.model.plain([60000.0; 10]);
    let sum = sum_of_devices(multi(&device(), vec![part(), part()]), &run.model);
    run.take(scaled_by_hand(run.optim.scaler(), sum));
    assert!(!run.status().has_overflow());
    let expected = f64::from(f16::from_f32(120000.0 / 65536.0).to_f32());
    assert_eq!(run.status().max_abs(), expected);
    assert_eq!(run.values(), [-expected; 10]);
}
