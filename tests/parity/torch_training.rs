//! Whole training runs of PyTorch with `GradScaler`, overflows injected, with a scaled loss and through the border: losses, scales, skips and weights.

use std::slice::from_ref;

use super::*;

const LAYERS: [[usize; 2]; 3] = [[8, 16], [16, 16], [16, 4]];

fn floats(values: &[Value]) -> Vec<f64> {
    values.iter().map(number).collect()
}

fn tensor<const D: usize>(values: &[Value], shape: [usize; D]) -> Tensor<D> {
    let data = TensorData::new(floats(values), shape);
    Tensor::from_data(data, (&device(), DType::F32))
}

fn layers(run: &Value) -> Vec<Linear> {
    let layer = |index: usize| {
        let (dims, of) = (LAYERS[index], |part: &str| list(&run[part][index]));
        let bias = Param::from_tensor(tensor(of("init_biases"), [dims[1]]));
        let weight = Param::from_tensor(tensor(of("init_weights"), dims));
        Linear {
            weight,
            bias: Some(bias),
        }
    };
    (0..LAYERS.len()).map(layer).collect()
}

fn forward(layers: &[Linear], input: Tensor<2>) -> Tensor<2> {
    let (last, hidden) = layers.split_last().unwrap();
    let layers = hidden.iter();
    last.forward(layers.fold(input, |x, layer| tanh(layer.forward(x))))
}

fn optimizer(name: &str) -> (ModuleOptimizer, f64) {
    match name {
        "sgd" => {
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
            (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.05)
        }
        "adam" => (AdamConfig::new().with_epsilon(1e-5).init(), 0.01),
        "adamw" => {
            let config = AdamWConfig::new().with_epsilon(1e-5);
            (config.with_weight_decay(0.01).init(), 0.01)
        }
        other => panic!("unknown optimizer {other}"),
    }
}

/// Sets one value of a gradient to infinity, as the traces did after `backward`.
fn inject_infinity(grads: &mut GradientsParams, id: ParamId) {
    let grad = grads.get::<2>(id).unwrap();
    let infinity = Tensor::full([1, 1], f32::INFINITY, &grad.device());
    grads.register(id, grad.slice_assign([3..4, 5..6], infinity));
}

/// With a loss that is scaled and gradients that are unscaled before the step; or, given a dtype, at the border of half precision. Scales and skips are
/// those of the run, the rest is within a relative error.
fn replay(run: &Value, border: Option<FloatDType>, tolerance: f64) {
    let of = |name: &str| number(&run[name]);
    let config = at_scale(of("init_scale")).with_growth_interval(of("growth_interval") as u32);
    let (scaler, amp) = match border {
        Some(dtype) => {
            let amp = MixedPrecision::new(dtype).with_scaler(config).unwrap();
            (GradScaler::from(&amp), amp)
        }
        None => (GradScaler::new(config).unwrap(), MixedPrecision::f32()),
    };
    let mut model = amp.attach(layers(run));
    let (kind, clip) = (run["optimizer"].as_str().unwrap(), &run["clip_norm"]);
    let (parts, (optimizer, lr)) = (of("accumulation") as usize, optimizer(kind));
    let window = AccumulationConfig::new(parts as u32).with_sum(true);
    let mut optim = ScaledOptimizer::new(optimizer, scaler).with_accumulation(window);
    if let Some(max_norm) = clip.as_f64() {
        optim = optim.with_clipping(GradientClip::GlobalNorm(max_norm));
    }

    let name = format!("{border:?}: {kind}, clip {clip}, accumulation {parts}");
    // Relative to the largest magnitude of the values: single weights may pass through zero.
    let close = |actual: &[f64], expected: &Value, at: &str| {
        let expected = expected
            .as_array()
            .map_or(from_ref(expected), Vec::as_slice);
        let expected = floats(expected);
        let magnitudes = expected.iter().map(|value| value.abs());
        let most = tolerance * magnitudes.fold(0.0, f64::max);
        assert_eq!(actual.len(), expected.len(), "{name}, {at}");
        for (ours, theirs) in actual.iter().zip(expected) {
            let is_close = (ours - theirs).abs() <= most;
            assert!(is_close, "{name}, {at}: {ours}, but PyTorch has {theirs}");
        }
    };
    for (step, expected) in list(&run["log"]).iter().enumerate() {
        let at = format!("{name}, step {step}");
        let scale = |optim: &ScaledOptimizer| f64::from(optim.scaler().loss_scale());
        assert_eq!(scale(&optim), expected["scale_used"], "{at}");

        let mut loss = 0.0;
        for micro in 0..parts {
            let batch = |of: &str, columns: usize| {
                let mut batches = list(&run[of]).chunks(12 * columns);
                tensor(batches.nth(step * parts + micro).unwrap(), [12, columns])
            };
            let output = amp.autocast(batch("inputs", 8), |x| forward(&model, x));
            let part = (output - batch("targets", 4)).square().mean() / parts as f64;
            loss += f64::from(part.clone().into_scalar::<f32>());
            let mut grads = optim.backward(part, &model);
            let is_hit = list(&run["inject_inf_at"]).contains(&json!(step));
            if is_hit && micro == parts - 1 {
                inject_infinity(grads.params_mut(), model[1].weight.id);
            }
            model = optim.step(lr, model, grads);
        }
        close(&[loss], &expected["loss"], &format!("{step}: loss"));
        let skipped = expected["skipped"] == true;
        if !clip.is_null() && !skipped {
            let norm = optim.scaler().last_status().unwrap().norm();
            close(&[norm], &expected["grad_norm"], &format!("{step}: norm"));
        }

        let done = Some(outcome(skipped));
        assert_eq!(optim.scaler().last_outcome(), done, "{at}");
        assert_eq!(scale(&optim), expected["scale_after"], "{at}");
    }
    assert_eq!(optim.scaler().counters().bad_losses(), 0, "{name}");
    for (index, layer) in model.iter().enumerate() {
        let ends = [numbers(&layer.weight), numbers(&layer.bias)];
        for (end, expected) in ends.into_iter().zip(["final_weights", "final_biases"]) {
            let end: Vec<f64> = end.into_iter().map(f64::from).collect();
            let at = format!("the end: {expected} of layer {index}");
            close(&end, &run[expected][index], &at);
        }
    }
}

#[test]
fn parity_torch_training() {
    let files = reference::<Value>("torch_training");
    for run in files.iter().flat_map(|(_, file)| list(&file["runs"])) {
        replay(run, None, 1e-5);
        replay(run, Some(FloatDType::F32), 1e-5);
        // The same scales and skips, with gradients that are multiplied inside; the rest as far as f16 goes.
        replay(run, Some(FloatDType::F16), 1e-2);
    }
}
