//! One run with scaling and overflows beside a plain run of its finite steps.

use super::*;

/// What happens at each step; the scale moves down and up several times.
const STEPS: [Option<Poison>; 16] = [
    // Before there is any state.
    Some(gradient("hidden.weight", f32::INFINITY)),
    None,
    None,
    Some(Poison::Loss),
    None,
    Some(gradient("head.weight", f32::NAN)),
    Some(gradient("hidden.weight", f32::NEG_INFINITY)),
    None,
    None,
    None,
    None,
    Some(gradient("head.weight", f32::NEG_INFINITY)),
    None,
    None,
    Some(Poison::Loss),
    None,
];

/// A scaler that grows after two finite steps, by powers of two.
pub fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_growth_interval(2);
    config.init().unwrap()
}

/// A model, an optimizer and a learning rate.
pub struct Plan<O> {
    pub net: Net,
    pub optimizer: O,
    pub lr: ModuleLearningRate,
}

impl<O> Plan<O> {
    /// At a learning rate of 0.01.
    pub fn new(net: &Net, optimizer: O) -> Self {
        Self {
            net: net.clone(),
            optimizer,
            lr: 0.01.into(),
        }
    }
}

/// What the scaled optimizer gets.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Gradients of a loss that was scaled.
    Scaled,
    /// The same, unscaled ahead of the step.
    Ahead,
    /// Burn's own.
    Plain,
}

/// What was counted, and what was found in the last step.
type Found = (LossScale, StepCounters, Option<GradientStatus>);

/// Parameters and state of the optimizer.
type End = (Vec<(DType, Vec<u8>)>, Pack);

/// Runs the plan with scaling and, on the finite steps, without, and compares both after every step.
///
/// Returns where they ended.
pub fn compare_with_plain<O: ModuleOptim + Clone>(plan: Plan<O>) -> End {
    let (end, found) = compare(&plan, Way::Scaled);
    let ahead = compare(&plan, Way::Ahead);
    assert!(ahead.0 == end, "unscaled ahead");
    assert_eq!(ahead.1, found);
    assert!(compare(&plan, Way::Plain).0 == end, "plain");
    end
}

fn compare<O: ModuleOptim + Clone>(plan: &Plan<O>, way: Way) -> (End, Found) {
    let device = Device::flex().autodiff();
    let mut scaled_net = plan.net.clone();
    let mut scaled = ScaledOptimizer::new(plan.optimizer.clone(), scaler());
    let mut plain_net = plan.net.clone();
    let mut plain = plan.optimizer.clone();
    let mut scales = Vec::new();

    for (step, poison) in STEPS.into_iter().enumerate() {
        let at = format!("{way:?}, step {step}");
        scales.push(scaled.scaler().loss_scale());
        let mut loss = scaled_net.loss(batch(step, &device));
        if let Some(poison) = poison {
            loss = poison.loss(loss);
        }
        let grads = match way {
            Way::Scaled | Way::Ahead => scaled.scaler().scale(loss).backward(),
            Way::Plain => loss.backward(),
        };
        let mut grads = GradientsParams::from_grads(grads, &scaled_net);
        if let Some(poison) = poison {
            grads = poison.gradients(grads, &scaled_net);
        }
        let before = (parameters(&scaled_net), state(scaled.optimizer()));
        scaled_net = match way {
            Way::Scaled => {
                let grads = scaled_by_hand(scaled.scaler(), grads);
                scaled.step(plan.lr.clone(), scaled_net, grads)
            }
            Way::Ahead => {
                let grads = scaled_by_hand(scaled.scaler(), grads);
                let grads = scaled.unscale(grads, &scaled_net).unwrap();
                scaled.step(plan.lr.clone(), scaled_net, grads)
            }
            Way::Plain => scaled.step(plan.lr.clone(), scaled_net, grads),
        };

        let outcome = burn_amp_tests::outcome(poison.is_some());
        assert_eq!(scaled.scaler().last_outcome(), Some(outcome), "{at}");
        let after = (parameters(&scaled_net), state(scaled.optimizer()));
        if poison.is_some() {
            assert!(before == after, "{at}: a skip changed something");
        } else {
            plain_net = super::step(&mut plain, plan.lr.clone(), plain_net, step);
            // A comparison of two runs that stand still would prove nothing.
            let mut pairs = before.0.iter().zip(&after.0);
            assert!(pairs.all(|(before, after)| before != after), "{at}");
        }
        assert!(after.0 == parameters(&plain_net), "{at}: parameters differ");
        assert_eq!(after.1, state(&plain), "{at}: states differ");
    }

    let moves = || scales.windows(2);
    assert!(moves().any(|pair| pair[0] < pair[1]), "{scales:?}");
    assert!(moves().any(|pair| pair[0] > pair[1]), "{scales:?}");
    let end = (parameters(&scaled_net), state(scaled.optimizer()));
    let scaler = scaled.scaler();
    let counted = (scaler.schedule(), scaler.counters());
    (end, (counted.0, counted.1, scaler.last_status()))
}
