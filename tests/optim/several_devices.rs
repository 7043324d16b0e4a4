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

/// The gradients of a step, of which one value is infinite in a bad one.
fn gradients(net: &Net, step: usize) -> GradientsParams {
    let mut grads = of_batch(net, step);
    if BAD_STEPS.contains(&step) {
        let id = [net.hidden.weight.id, net.head.weight.id][step % 2];
        let grad = grads.remove::<2>(id).unwrap();
        let infinite = Tensor::full([1, 1], f32::INFINITY, &grad.device());
        grads.register(id, grad.slice_assign([0..1, 1..2], infinite));
    }
    grads
}

/// As Burn's own `step_multi` and as the sum of the parts, bit for bit; an overflow in one part skips the step for all. A loss may have reached
/// the head on one device only.
#[test]
fn parts_of_several_devices_are_one_step() {
    let mut nets = [(); 3].map(|()| Net::full(&flex()));
    let mut optims = [(); 2].map(|()| ScaledOptimizer::new(AdamConfig::new().init(), scaler()));
    let mut plain = AdamConfig::new().init();
    for step in 0..16 {
        let parts = |net: &Net| {
            let mut parts = vec![of_batch(net, 100 + step), gradients(net, step)];
            parts.push(of_batch(net, 200 + step));
            if step == 7 {
                parts[2].remove::<2>(net.head.weight.id).unwrap();
            }
            multi(&flex(), parts)
        };
        let [of_multi, of_sum, of_plain] = nets;
        let [grads, sum] = [&of_multi, &of_sum].map(parts);
        let sum = sum_of_devices(sum, &of_sum);
        let of_multi = optims[0].step_multi(0.01, of_multi, grads).unwrap();
        let of_sum = optims[1].step(0.01, of_sum, sum);
        let of_plain = match BAD_STEPS.contains(&step) {
            true => of_plain,
            false => {
                let grads = parts(&of_plain);
                plain.step_multi(0.01, of_plain, grads)
            }
        };
        nets = [of_multi, of_sum, of_plain];
        let [multi, sum, plain] = nets.each_ref().map(parameters);
        assert!(multi == plain && sum == plain, "step {step}");
    }
    assert_eq!(
        optims.each_ref().map(|optim| state(optim.optimizer())),
        [(); 2].map(|()| state(&plain))
    );
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
