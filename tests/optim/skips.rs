//! Steps that are skipped now and then: parameters and state are at every step, bit for bit, those of a plain run of the finite steps, under every
//! configuration of `fused/follows.rs`. And steps with gradients of several devices.

use half::f16;

use crate::support::*;

/// It may go to another thread.
const _: fn() = || {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
};

/// Before there is any state, and later, twice in a row.
const BAD_STEPS: [usize; 6] = [0, 3, 5, 6, 11, 14];

/// The gradients of a step, of which one value is infinite in a bad one, and the parameter that has it.
fn gradients(net: &Net, step: usize) -> (GradientsParams, &'static str) {
    let (path, id) = match step % 2 {
        0 => ("hidden.weight", net.hidden.weight.id),
        _ => ("head.weight", net.head.weight.id),
    };
    let mut grads = of_batch(net, step);
    if BAD_STEPS.contains(&step) {
        let grad = grads.remove::<2>(id).unwrap();
        let infinite = Tensor::full([1, 1], f32::INFINITY, &grad.device());
        grads.register(id, grad.slice_assign([0..1, 1..2], infinite));
    }
    (grads, path)
}

/// Parameters and state of the optimizer.
type End = (Vec<(DType, Vec<u8>)>, Pack);

/// The bad steps are skipped, and the others are those of the optimizer alone. A device but Flex may fuse the operations of the two in its own
/// way: there, only what a skip leaves is compared.
pub fn skips_leave_no_trace<O: ModuleOptim + Clone>(
    net: &Net,
    optim: O,
    lr: impl Into<ModuleLearningRate>,
) -> End {
    let (mut scaled_net, mut plain_net, lr) = (net.clone(), net.clone(), lr.into());
    let mut scaled = ScaledOptimizer::new(optim.clone(), scaler());
    let mut plain = optim;
    for step in 0..16 {
        let before = (parameters(&scaled_net), state(scaled.optimizer()));
        let (grads, path) = gradients(&scaled_net, step);
        scaled_net = scaled.step(lr.clone(), scaled_net, grads);
        let after = (parameters(&scaled_net), state(scaled.optimizer()));
        let is_bad = BAD_STEPS.contains(&step);
        assert_eq!(scaled.scaler().last_outcome(), Some(outcome(is_bad)));
        if is_bad {
            assert!(before == after, "step {step}: a skip changed something");
            let status = scaled.scaler().last_status().unwrap();
            let named = (status.overflow_parameter(), status.non_finite());
            assert_eq!(named, (Some(path), 1), "step {step}");
        } else {
            let grads = of_batch(&plain_net, step);
            plain_net = plain.step(lr.clone(), plain_net, grads);
            // A comparison of two runs that stand still would prove nothing.
            let mut pairs = before.0.iter().zip(&after.0);
            assert!(pairs.all(|(before, after)| before != after), "step {step}");
        }
        if net.hidden.weight.device() == flex() {
            assert!(after.0 == parameters(&plain_net), "step {step}");
            assert_eq!(after.1, state(&plain), "step {step}");
        }
    }
    (parameters(&scaled_net), state(scaled.optimizer()))
}

/// On the device that the features choose, too.
#[test]
fn adam_on_the_default_device() {
    skips_leave_no_trace(&Net::full(&device()), AdamConfig::new().init(), 0.01);
}

#[test]
fn optimizer_mut_reaches_the_inner_optimizer() {
    let adam = AdamConfig::new().init();
    let mut optim = ScaledOptimizer::new(adam.clone(), scaler());
    *optim.optimizer_mut() = adam.with_grad_clipping(GradientClipping::Value(1e-3));
    assert!(optim.optimizer().has_gradient_clipping());
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
            let mut parts = vec![of_batch(net, 100 + step), gradients(net, step).0];
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
