//! A network that no loss scale can train in f16, because its gradients span more than f16 holds, and that parts with factors of their own train.
//!
//! Layers learn one by one, each from a loss of its own (greedy layer-wise training), and the losses have weights of 1, 2^-24 and 2^-48. Adam does not
//! mind, so in f32 all of them learn.

use burn_amp_tests::prelude::*;

use crate::support::{Run, device, fill, random, two};

const STEPS: usize = 60;
const WEIGHTS: [i32; 3] = [-48, -24, 0];

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new() -> Self {
        let layer = |_| LinearConfig::new(6, 6).init(&device());
        let layers = (0..3).map(layer).collect();
        fill(Self { layers }, 0)
    }

    /// The loss of each layer, not weighted, and the sum of all.
    fn losses(
        &self,
        amp: &MixedPrecision,
        by: impl Fn(usize) -> Rescale,
    ) -> (Vec<Tensor<1>>, Tensor<1>) {
        let [mut x, target] = [1, 50].map(|seed| random::<2>(seed, [16, 6], &device()));
        let (mut losses, mut sum) = (Vec::new(), Tensor::zeros([1], &device()));
        for (index, layer) in self.layers.iter().enumerate() {
            // f32 lies between the layers: the gradient of each comes from its own loss.
            let scope = |x| amp.autocast(x, |x| tanh(layer.forward(x)));
            let output = rescaled(by(index), x, scope);
            x = output.clone().detach();
            let loss = (output - target.clone()).square().mean();
            sum = sum + loss.clone() * two(WEIGHTS[index]);
            losses.push(loss);
        }
        (losses, sum)
    }
}

/// What of each layer's first loss is left after the run, and the share of skipped steps.
fn train(amp: &MixedPrecision, by: impl Fn(usize) -> Rescale) -> (Vec<f32>, f64) {
    let mut run = Run::new(Net::new(), amp.clone());
    // Its epsilon, 1e-5 as a rule, would hide what small gradients do.
    let adam = AdamConfig::new().with_epsilon(1e-25);
    run.optim = ScaledOptimizer::new(adam.init(), amp);
    let read = |net: &Net| {
        let losses = net.losses(amp, &by).0.into_iter();
        losses.map(|loss| loss.into_scalar::<f32>())
    };
    let first: Vec<f32> = read(&run.model).collect();
    for _ in 0..STEPS {
        let loss = run.model.losses(amp, &by).1;
        run.step(0.02, run.gradients(loss));
    }
    let left = read(&run.model)
        .zip(first)
        .map(|(last, first)| last / first);
    (left.collect(), run.counters().skip_rate())
}

fn all_learn(left: &[f32]) -> bool {
    left.iter().all(|left| *left < 0.8)
}

fn plain(_: usize) -> Rescale {
    0.into()
}

fn amp(config: GradScalerConfig) -> MixedPrecision {
    let config = config.with_max_consecutive_skips(None);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

fn from_64() -> MixedPrecision {
    amp(at_scale(64.0))
}

#[test]
fn in_f32_all_layers_learn() {
    let (left, _) = train(&MixedPrecision::f32(), plain);
    assert!(all_learn(&left), "{left:?}");
}

#[test]
fn no_loss_scale_trains_all_layers() {
    for exponent in (-8..=72).step_by(8) {
        let (left, _) = train(&amp(at_scale(two(exponent)).with_dynamic(false)), plain);
        assert!(!all_learn(&left), "2^{exponent}: {left:?}");
    }
    // Nor one that moves.
    for interval in [1, 2000] {
        let config = GradScalerConfig::new().with_growth_interval(interval);
        let (left, _) = train(&amp(config), plain);
        assert!(!all_learn(&left), "{interval}: {left:?}");
    }
}

/// Fixed ones; dynamic ones from 1, by PyTorch's rule with a growth after each clean step; AdaLoss.
#[test]
fn factors_train_all_layers() {
    let dynamic = at_scale(1.0)
        .with_growth_factor(16.0)
        .with_backoff_factor(1.0 / 16.0)
        .with_growth_interval(4);
    let limit = two(60);
    let adaloss = at_scale(limit).with_max_scale(Some(limit));
    type Way<'a> = &'a dyn Fn(usize) -> Result<Rescale, AmpError>;
    let ways: [(f64, Way); 3] = [
        (0.0, &|index| Ok((-WEIGHTS[index]).into())),
        (0.4, &|index| {
            Rescale::dynamic(format!("layer {index}")).with_scaler(dynamic)
        }),
        (0.0, &|index| {
            let part = Rescale::adaloss(format!("layer {index}"));
            part.with_scaler(adaloss)?.with_statistics(1e-3, limit)
        }),
    ];
    for (most, way) in ways {
        let (left, skipped) = train(&from_64(), |index| way(index).unwrap());
        assert!(all_learn(&left), "{left:?}");
        let as_expected = match most {
            0.0 => skipped == 0.0,
            most => skipped > 0.0 && skipped < most,
        };
        assert!(as_expected, "{skipped}");
    }
}
