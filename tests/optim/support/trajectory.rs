//! One run with scaling and overflows beside a plain run of its clean steps.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;

use super::{Net, Poison, State, batch, parameters, state};

/// What happens at each step; the scale moves down and up several times.
const STEPS: [Option<Poison>; 16] = [
    // Before there is any state.
    gradient("hidden.weight", f32::INFINITY),
    None,
    None,
    Some(Poison::Loss),
    None,
    gradient("head.weight", f32::NAN),
    gradient("hidden.weight", f32::NEG_INFINITY),
    None,
    None,
    None,
    None,
    gradient("head.weight", f32::NEG_INFINITY),
    None,
    None,
    Some(Poison::Loss),
    None,
];

const fn gradient(path: &'static str, value: f32) -> Option<Poison> {
    Some(Poison::Gradient { path, value })
}

/// A scaler that grows after two clean steps, by powers of two.
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

/// What the scaled optimizer gets.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Gradients of a loss that was scaled.
    Scaled,
    /// Burn's own.
    Plain,
}

/// Runs the plan with scaling and, on the clean steps, without, and compares both after every step.
///
/// Returns where they ended.
pub fn compare_with_plain<O: ModuleOptim + Clone>(plan: Plan<O>) -> (Vec<Vec<u8>>, State) {
    let end = compare(&plan, Way::Scaled);
    assert!(compare(&plan, Way::Plain) == end);
    end
}

fn compare<O: ModuleOptim + Clone>(plan: &Plan<O>, way: Way) -> (Vec<Vec<u8>>, State) {
    let device = Device::flex().autodiff();
    let mut scaled_net = plan.net.clone();
    let mut scaled = ScaledOptimizer::new(plan.optimizer.clone(), scaler());
    let mut plain_net = plan.net.clone();
    let mut plain = plan.optimizer.clone();
    let mut scales = Vec::new();

    for (step, poison) in STEPS.into_iter().enumerate() {
        scales.push(scaled.scaler().loss_scale());
        let mut loss = scaled_net.loss(batch(step, &device));
        if let Some(poison) = poison {
            loss = poison.loss(loss);
        }
        let grads = match way {
            Way::Scaled => scaled.scaler().scale(loss).backward(),
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
            Way::Plain => scaled.step(plan.lr.clone(), scaled_net, grads),
        };

        let outcome = scaled.scaler().last_outcome();
        if poison.is_some() {
            assert_eq!(outcome, Some(StepOutcome::Skipped), "{way:?}, step {step}");
            let after = (parameters(&scaled_net), state(scaled.optimizer()));
            assert!(
                before == after,
                "{way:?}: skipped step {step} changed something"
            );
        } else {
            assert_eq!(outcome, Some(StepOutcome::Stepped), "{way:?}, step {step}");
            let loss = plain_net.loss(batch(step, &device));
            let grads = GradientsParams::from_grads(loss.backward(), &plain_net);
            plain_net = plain.step(plan.lr.clone(), plain_net, grads);
            // A comparison of two runs that stand still would prove nothing.
            let moved = before.0.iter().zip(parameters(&scaled_net));
            for (index, (before, after)) in moved.enumerate() {
                assert!(
                    *before != after,
                    "{way:?}, step {step}: parameter {index} stands"
                );
            }
        }
        assert!(
            parameters(&scaled_net) == parameters(&plain_net),
            "{way:?}, step {step}: parameters differ"
        );
        assert_eq!(
            state(scaled.optimizer()),
            state(&plain),
            "{way:?}, step {step}: states differ"
        );
    }

    assert!(
        scales.windows(2).any(|pair| pair[0] < pair[1]),
        "{scales:?}"
    );
    assert!(
        scales.windows(2).any(|pair| pair[0] > pair[1]),
        "{scales:?}"
    );
    let values = parameters(&scaled_net);
    let values = values.into_iter().map(|(_, bytes)| bytes).collect();
    (values, state(scaled.optimizer()))
}
