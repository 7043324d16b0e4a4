//! A network that no loss scale can train in f16, because its gradients span more than f16 holds, and that regions with factors of their own train.
//!
//! Layers learn one by one, each from a loss of its own (greedy layer-wise training), and the losses have weights of 1, 2^-24 and 2^-48. Adam does not
//! mind, so in f32 all of them learn.

use crate::support::*;

const STEPS: usize = 60;
const WEIGHTS: [i32; 3] = [-48, -24, 0];

type Net = [Linear; 3];
type Losses = (Vec<Tensor<1>>, Tensor<1>);

/// The loss of each layer, not weighted, and the sum of all.
fn losses(net: &Net, amp: &MixedPrecision, by: impl Fn(usize) -> Rescale) -> Losses {
    let [mut x, target] = [1, 50].map(|seed| random::<2>(seed, [16, 6], &device()));
    let (mut losses, mut sum) = (Vec::new(), Tensor::zeros([1], &device()));
    for (index, layer) in net.iter().enumerate() {
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

/// What of each layer's first loss is left after the run, and the share of skipped steps.
fn train(amp: &MixedPrecision, by: impl Fn(usize) -> Rescale) -> (Vec<f32>, f64) {
    let net: Net = [(); 3].map(|()| LinearConfig::new(6, 6).init(&device()));
    // Its epsilon, 1e-5 as a rule, would hide what small gradients do.
    let adam = AdamConfig::new().with_epsilon(1e-25).init();
    let mut run: Player<Net> = Player::with(adam, fill(net, 0), amp);
    let read = |net: &Net| -> Vec<f32> {
        let losses = losses(net, amp, &by).0.into_iter();
        losses.map(|loss| loss.into_scalar()).collect()
    };
    let first = read(&run.model);
    for _ in 0..STEPS {
        run.train(0.02, losses(&run.model, amp, &by).1);
    }
    let left = read(&run.model).into_iter().zip(first);
    let left = left.map(|(last, first)| last / first).collect();
    (left, run.counters().skip_rate())
}

fn amp(config: GradScalerConfig) -> MixedPrecision {
    f16_under(config.with_max_consecutive_skips(None))
}

fn all_learn(left: &[f32]) -> bool {
    left.iter().all(|left| *left < 0.8)
}

fn plain(_: usize) -> Rescale {
    Rescale::power_of_two(0)
}

/// Nor one that moves.
#[test]
fn no_loss_scale_trains_all_layers() {
    let fixed = (-8..=72)
        .step_by(8)
        .map(|k| at_scale(two(k)).with_dynamic(false));
    let moving = [1, 2000].map(|steps| GradScalerConfig::new().with_growth_interval(steps));
    for config in fixed.chain(moving) {
        let (left, _) = train(&amp(config), plain);
        assert!(!all_learn(&left), "{config:?}: {left:?}");
    }
}

/// f32 does, and factors: fixed ones; dynamic ones from 1, by PyTorch's rule with a growth after each finite step; AdaLoss.
#[test]
fn factors_train_all_layers() {
    let limit = two(60);
    let adaloss = at_scale(1.0)
        .with_max_scale(Some(limit))
        .schedule()
        .unwrap();
    let adaloss = adaloss
        .with_rule(AdaLoss::new(1e-3, limit).unwrap())
        .unwrap();
    let dynamic = at_scale(1.0).with_growth_factor(16.0);
    let dynamic = dynamic.with_backoff_factor(1.0 / 16.0);
    let dynamic = dynamic.with_growth_interval(4);
    let region = |index: usize| Rescale::dynamic(format!("layer {index}"));
    let (full, half) = (MixedPrecision::f32(), || amp(at_scale(64.0)));
    let fixed = |index: usize| Rescale::power_of_two(-WEIGHTS[index]);
    let moving = |index| region(index).with_scaler(dynamic).unwrap();
    let adaptive = |index| region(index).with_schedule(adaloss.clone()).unwrap();
    type Way<'a> = &'a dyn Fn(usize) -> Rescale;
    let ways: [(f64, MixedPrecision, Way); 4] = [
        (0.0, full, &plain),
        (0.0, half(), &fixed),
        (0.4, half(), &moving),
        (0.0, half(), &adaptive),
    ];
    for (most, amp, way) in ways {
        let (left, skipped) = train(&amp, way);
        assert!(all_learn(&left), "{left:?}");
        assert!(skipped <= most, "{skipped}");
        assert_eq!(skipped > 0.0, most > 0.0);
    }
}
