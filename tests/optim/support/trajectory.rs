//! One run with scaling and overflows beside a plain run of its finite steps.

use super::*;

/// A value in place of a gradient's last, as an overflow in half precision would have it; or the loss itself is infinite. The scale
/// moves down and up several times.
fn bad(step: usize) -> Bad {
    match step {
        // Before there is any state.
        0 => Some(Some(f32::INFINITY)),
        5 => Some(Some(f32::NAN)),
        6 | 11 => Some(Some(f32::NEG_INFINITY)),
        3 | 14 => Some(None),
        _ => None,
    }
}

type Bad = Option<Option<f32>>;

/// A scaler that grows after two finite steps, by powers of two.
pub fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_growth_interval(2);
    config.init().unwrap()
}

/// What the scaled optimizer gets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Gradients of a loss that was scaled.
    Scaled,
    /// The same, unscaled before the step. The decision is made then: whoever replaces the bad values does not undo it.
    Before,
    /// Burn's own.
    Plain,
    /// Burn's own of three parts of a batch, as several devices compute them.
    Devices,
    /// Their sum, of losses that were scaled.
    Sum,
}

/// What was counted, and what was found in the last step.
type Found = (LossScale, StepCounters, Option<GradientStatus>);

/// Parameters and state of the optimizer.
type End = (Vec<(DType, Vec<u8>)>, Pack);

/// Gradients of each part of a batch, whose losses are multiplied by `scale`. The `bad` value is in one, at this path.
fn gradients(at: (&Net, usize, usize), scale: f32, bad: Bad, path: &str) -> Vec<GradientsParams> {
    let (net, step, parts) = at;
    let device = net.hidden.weight.device();
    let of = |part: usize| {
        let bad = bad.filter(|_| part == step % parts);
        let mut loss = net.loss(batch(parts * step + part, &device)) * scale;
        if bad == Some(None) {
            loss = loss * f32::INFINITY;
        }
        let mut grads = GradientsParams::from_grads(loss.backward(), net);
        if step == 7 && part > 0 {
            // The loss has reached the head on one device only.
            grads.remove::<2>(net.head.weight.id).unwrap();
        }
        if let Some(Some(value)) = bad {
            let (id, (_, shape, _)) = &burn_amp_tests::parameters(net)[path];
            let replace = [replace::<1>, replace::<2>, replace::<3>, replace::<4>];
            replace[shape.len() - 1](&mut grads, ParamId::from(*id), value);
        }
        grads
    };
    (0..parts).map(of).collect()
}

fn replace<const D: usize>(grads: &mut GradientsParams, id: ParamId, value: f32) {
    let grad = grads.remove::<D>(id).unwrap();
    let last = grad.dims().map(|size| size - 1..size);
    let value = Tensor::full([1; D], value, &grad.device());
    grads.register(id, grad.slice_assign(last, value));
}

/// Runs with scaling and, on the finite steps, without, and compares both after every step: parameters and state are the same bits. A
/// device but Flex may fuse operations of the two in its own way: there, only what a skip leaves is compared.
///
/// Returns where they ended.
pub fn compare_with_plain<O: ModuleOptim + Clone>(
    net: &Net,
    optim: O,
    lr: impl Into<ModuleLearningRate>,
) -> End {
    let lr = lr.into();
    let plain_step =
        |optim: &mut O, net, mut grads: Vec<_>| optim.step(lr.clone(), net, grads.pop().unwrap());
    let run = |way| compare(net, &optim, &lr, way, plain_step);
    let [scaled, before, plain] = [Way::Scaled, Way::Before, Way::Plain].map(run);
    assert!(!is_exact(net) || before == scaled, "unscaled before");
    assert!(!is_exact(net) || plain.0 == scaled.0, "plain");
    scaled.0
}

fn is_exact(net: &Net) -> bool {
    net.hidden.weight.device() == flex()
}

/// Burn's own `step_multi` is what they are compared with.
pub fn compare_on_devices(net: &Net, optim: ModuleOptimizer) {
    let plain_step = |optim: &mut ModuleOptimizer, net, grads| {
        optim.step_multi(0.01, net, multi(&Device::flex(), grads))
    };
    let run = |way| compare(net, &optim, &0.01.into(), way, plain_step);
    assert!(run(Way::Devices).0 == run(Way::Sum).0);
}

/// Of several devices, which here are one.
pub fn multi(device: &Device, parts: Vec<GradientsParams>) -> MultiGradientsParams {
    let grads = parts.into_iter().map(|part| (part, device.clone()));
    let grads = grads.collect();
    MultiGradientsParams { grads }
}

fn compare<O: ModuleOptim + Clone>(
    net: &Net,
    optim: &O,
    lr: &ModuleLearningRate,
    way: Way,
    plain_step: impl Fn(&mut O, Net, Vec<GradientsParams>) -> Net,
) -> (End, Found) {
    let (mut scaled_net, mut plain_net) = (net.clone(), net.clone());
    let mut scaled = ScaledOptimizer::new(optim.clone(), scaler());
    let mut plain = optim.clone();
    let paths = burn_amp_tests::parameters(net).into_keys();
    let (paths, mut scales) = (paths.collect::<Vec<_>>(), Vec::new());

    for step in 0..16 {
        let (at, bad) = (format!("{way:?}, step {step}"), bad(step));
        let path = &paths[step / 2 % paths.len()];
        let of_devices = [Way::Devices, Way::Sum].contains(&way);
        let parts = if of_devices { 3 } else { 1 };
        let of = |net: &Net, scale, bad| gradients((net, step, parts), scale, bad, path);
        let before = (parameters(&scaled_net), state(scaled.optimizer()));
        let scaler = scaled.scaler().clone();
        let scale = scaler.loss_scale();
        scales.push(scale);
        let is_plain = [Way::Plain, Way::Devices].contains(&way);
        let mut grads = of(&scaled_net, if is_plain { 1.0 } else { scale }, bad);
        let (lr, module) = (lr.clone(), scaled_net);
        let devices = |grads| multi(&Device::flex(), grads);
        let by_hand = |grads| scaled_by_hand(&scaler, grads);
        scaled_net = match way {
            Way::Plain => scaled.step(lr, module, grads.remove(0)),
            Way::Devices => scaled.step_multi(lr, module, devices(grads)).unwrap(),
            Way::Sum => {
                let sum = sum_of_devices(devices(grads), &module);
                scaled.step(lr, module, by_hand(sum))
            }
            Way::Scaled => scaled.step(lr, module, by_hand(grads.remove(0))),
            Way::Before => {
                let grads = by_hand(grads.remove(0));
                let mut grads = scaled.unscale(grads, &module).unwrap();
                assert_eq!(grads.has_overflow(), bad.is_some(), "{at}");
                if bad.is_some() {
                    *grads.params_mut() = of(&module, 1.0, None).remove(0);
                }
                scaled.step(lr, module, grads)
            }
        };

        let outcome = burn_amp_tests::outcome(bad.is_some());
        assert_eq!(scaled.scaler().last_outcome(), Some(outcome), "{at}");
        let status = scaled.scaler().last_status().unwrap();
        assert_eq!(status.gradients(), paths.len(), "{at}");
        let after = (parameters(&scaled_net), state(scaled.optimizer()));
        if let Some(bad) = bad {
            assert!(before == after, "{at}: a skip changed something");
            let named = (status.overflow_parameter(), status.non_finite());
            assert!(bad.is_none() || named == (Some(path), 1), "{at}");
        } else {
            let grads = of(&plain_net, 1.0, None);
            plain_net = plain_step(&mut plain, plain_net, grads);
            // A comparison of two runs that stand still would prove nothing.
            let mut pairs = before.0.iter().zip(&after.0);
            assert!(pairs.all(|(before, after)| before != after), "{at}");
        }
        if is_exact(net) {
            assert!(after.0 == parameters(&plain_net), "{at}: parameters differ");
            assert_eq!(after.1, state(&plain), "{at}: states differ");
        }
    }

    let moves = || scales.windows(2);
    assert!(moves().any(|pair| pair[0] < pair[1]), "{scales:?}");
    assert!(moves().any(|pair| pair[0] > pair[1]), "{scales:?}");
    let end = (parameters(&scaled_net), state(scaled.optimizer()));
    let scaler = scaled.scaler();
    let found = (scaler.schedule(), scaler.counters(), scaler.last_status());
    (end, found)
}
