//! Parts whose factors move: whose fault an overflow is, what each learns from a step, and that records hold it.

use burn::{
    module::Module,
    optim::{GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::Tensor,
};
use burn_amp::{AmpRecord, GradScalerConfig, MixedPrecision, Rescale, ScaledOptimizer, rescaled};

use crate::support::{Gain, f16, logs, parameters, two, vector};

#[derive(Module, Debug)]
struct Net {
    inner: Gain,
    last: Gain,
}

/// A model with parts, its optimizer, and the loss scale between them.
struct Run {
    amp: MixedPrecision,
    optim: ScaledOptimizer<ModuleOptimizer>,
    net: Net,
}

const KEPT: i32 = 10;

/// A part that begins at 2^k.
fn dynamic(name: &str, k: i32) -> Rescale {
    let config = GradScalerConfig::new()
        .with_init_scale(two(k))
        .with_growth_interval(3);
    Rescale::dynamic(name).with_scaler(config).unwrap()
}

impl Run {
    fn new() -> Self {
        let amp = f16(two(KEPT));
        let net = Net {
            inner: Gain::new(&[1.0, 1.0]),
            last: Gain::new(&[1.0, 1.0]),
        };
        Self {
            optim: ScaledOptimizer::new(SgdConfig::new().init(), &amp),
            net: net.apply_reparameterization(amp.clone()),
            amp,
        }
    }

    /// A step with a loss of 2^`weight` times the sum of the outputs. Whether it was skipped, and the exponent of the scale after it.
    fn step(&mut self, weight: i32, forward: impl Fn(&Net, Tensor<1>) -> Tensor<1>) -> (bool, i32) {
        let before = parameters(&self.net);
        let output = self
            .amp
            .autocast(vector(&[1.0, 1.0]), |x| forward(&self.net, x));
        let grads = (output.sum() * two(weight)).backward();
        let grads = GradientsParams::from_grads(grads, &self.net);
        // So small a step that the gradients of the next are the same.
        self.net = self.optim.step(1e-30, self.net.clone(), grads);
        assert_eq!(parameters(&self.net), before);
        let skipped = self.optim.scaler().last_outcome().unwrap().is_skipped();
        (skipped, exponent(self.amp.loss_scale()))
    }

    /// The exponents of the parts' factors.
    fn parts(&self) -> Vec<(String, i32)> {
        let parts = self.amp.parts().into_iter();
        parts
            .map(|(name, factor)| (name, exponent(factor)))
            .collect()
    }

    fn part(&self) -> i32 {
        self.parts()[0].1
    }
}

fn exponent(scale: f32) -> i32 {
    let exponent = scale.log2();
    assert_eq!(exponent.fract(), 0.0);
    exponent as i32
}

/// Where the gradient comes to the part, deep in it, and where only that of a parameter does so.
#[test]
fn an_overflow_in_a_part_lowers_its_factor_alone() {
    type Part = fn(&Net, Tensor<1>) -> Tensor<1>;
    let plain: Part = |net, x| net.inner.forward(x);
    let deep: Part = |net, x| net.inner.forward(x * two(8)) * two(-8) * two(8) * two(-8);
    let of_parameter: Part = |net, x| net.inner.forward(x * two(8)) * two(-8);
    // The gradient that comes is 2^8, and 2^16 is too much.
    for (index, (part, fits)) in [(plain, 7), (deep, 7), (of_parameter, 7)]
        .into_iter()
        .enumerate()
    {
        let mut run = Run::new();
        let forward = |net: &Net, x: Tensor<1>| {
            let hidden = rescaled(dynamic("inner", 11), x, |x| part(net, x));
            net.last.forward(hidden)
        };
        for k in (fits..11).rev() {
            assert_eq!(run.step(-2, forward), (true, KEPT), "case {index}");
            assert_eq!(run.parts(), [("inner".to_string(), k)]);
        }
        assert_eq!(run.step(-2, forward), (false, KEPT));
        assert_eq!(run.part(), fits);
        assert_eq!(run.optim.scaler().counters().skipped(), 4);
    }
}

/// Before it comes to the part, or in the loss: the factor is not to blame.
#[test]
fn an_overflow_outside_leaves_the_part() {
    let forward = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("inner", 3), x, |x| net.inner.forward(x));
        net.last.forward(hidden)
    };
    let mut run = Run::new();
    assert_eq!(run.step(8, forward), (true, KEPT - 1));
    assert_eq!(run.part(), 3);
    // In the parameter of the last part.
    let late = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("inner", 3), x, |x| net.inner.forward(x) * two(12));
        net.last.forward(hidden) * two(-6)
    };
    assert_eq!(run.step(1, late), (true, KEPT - 2));
    assert_eq!(run.part(), 3);
    // In the loss.
    let mut run = Run::new();
    let output = run
        .amp
        .autocast(vector(&[1.0, 1.0]), |x| forward(&run.net, x));
    let grads = (output * f32::NAN).sum().backward();
    let grads = GradientsParams::from_grads(grads, &run.net);
    run.net = run.optim.step(1e-30, run.net.clone(), grads);
    assert_eq!(run.optim.scaler().counters().bad_losses(), 1);
    assert_eq!((run.part(), exponent(run.amp.loss_scale())), (3, KEPT));
}

#[test]
fn of_nested_parts_the_first_is_to_blame() {
    let forward = |outer: i32, inner: i32| {
        move |net: &Net, x: Tensor<1>| {
            rescaled(dynamic("outer", outer), x, |x| {
                let hidden = rescaled(dynamic("inner", inner), x, |x| net.inner.forward(x));
                net.last.forward(hidden)
            })
        }
    };
    let named = |inner, outer| [("inner".to_string(), inner), ("outer".to_string(), outer)];
    // The gradient that comes is 2^10.
    let mut run = Run::new();
    assert_eq!(run.step(0, forward(7, 1)), (true, KEPT));
    assert_eq!(run.parts(), named(1, 6));
    let mut run = Run::new();
    assert_eq!(run.step(0, forward(2, 5)), (true, KEPT));
    assert_eq!(run.parts(), named(4, 2));
    assert_eq!(run.step(0, forward(2, 5)), (true, KEPT));
    assert_eq!(run.step(0, forward(2, 5)), (false, KEPT));
    assert_eq!(run.parts(), named(3, 2));
}

/// In f32, a part is that of the scope that opens inside.
#[test]
fn a_scope_in_a_part() {
    let mut run = Run::new();
    for (skipped, k) in [(true, 6), (true, 5), (false, 5)] {
        let input = vector(&[1.0, 1.0]);
        let output = rescaled(dynamic("all", 7), input, |x| {
            run.amp
                .autocast(x, |x| run.net.last.forward(run.net.inner.forward(x)))
        });
        let grads = GradientsParams::from_grads(output.sum().backward(), &run.net);
        run.net = run.optim.step(1e-30, run.net.clone(), grads);
        assert_eq!(
            run.optim.scaler().last_outcome().unwrap().is_skipped(),
            skipped
        );
        assert_eq!((run.part(), exponent(run.amp.loss_scale())), (k, KEPT));
    }
}

#[test]
fn clean_steps_let_those_grow_that_were_opened() {
    let both = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("a", 0), x, |x| net.inner.forward(x));
        rescaled(dynamic("b", 0), hidden, |x| net.last.forward(x))
    };
    let one = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("a", 0), x, |x| net.inner.forward(x));
        net.last.forward(hidden)
    };
    let mut run = Run::new();
    for step in 1..=6 {
        let (skipped, _) = match step % 2 {
            0 => run.step(-4, both),
            _ => run.step(-4, one),
        };
        assert!(!skipped);
    }
    assert_eq!(run.parts(), [("a".to_string(), 2), ("b".to_string(), 1)]);
    // One overflow, and the other part waits.
    let high = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("a", 0), x, |x| net.inner.forward(x));
        rescaled(dynamic("b", 0), hidden, |x| net.last.forward(x) * two(10)) * two(-10)
    };
    assert_eq!(run.step(5, high), (true, KEPT));
    assert_eq!(run.parts(), [("a".to_string(), 2), ("b".to_string(), 0)]);
    run.optim.scaler_mut().reset();
    assert_eq!(run.parts(), [("a".to_string(), 0), ("b".to_string(), 0)]);
}

/// The loss scale backs off in place of a factor that cannot.
#[test]
fn a_part_at_its_floor() {
    let config = GradScalerConfig::new()
        .with_init_scale(4.0)
        .with_min_scale(Some(4.0));
    let part = Rescale::dynamic("inner").with_scaler(config).unwrap();
    let mut run = Run::new();
    let forward = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(part.clone(), x, |x| net.inner.forward(x));
        net.last.forward(hidden)
    };
    assert_eq!(run.step(5, forward), (true, KEPT - 1));
    assert_eq!(run.part(), 2);
}

/// 6e-8 / (0.00125 * deviation), rounded down to a power of two.
#[test]
fn adaloss_lifts_small_gradients() {
    let adaloss = |limit: f64| {
        let config = GradScalerConfig::new()
            .with_init_scale(limit)
            .with_max_scale(Some(limit));
        Rescale::adaloss("inner").with_scaler(config).unwrap()
    };
    let with = |part: Rescale| {
        move |net: &Net, x: Tensor<1>| {
            let hidden = rescaled(part.clone(), x, |x| net.inner.forward(x));
            net.last.forward(hidden)
        }
    };
    for (part, weight, expected) in [
        (Rescale::adaloss("inner"), -20, 4),
        (adaloss(64.0), -20, 5),
        (adaloss(1024.0), -22, 7),
        (Rescale::adaloss("inner"), -16, 1),
        (Rescale::adaloss("inner"), -4, 0),
        // Nested in another factor, up to 1024 in all, and here up to 8.
        (
            Rescale::adaloss("inner")
                .with_statistics(1e-3, 8.0)
                .unwrap(),
            -20,
            3,
        ),
        (
            Rescale::adaloss("inner")
                .with_statistics(1e-2, 8.0)
                .unwrap(),
            -20,
            2,
        ),
    ] {
        let mut run = Run::new();
        let forward = with(part);
        assert_eq!(run.step(weight - KEPT, &forward), (false, KEPT));
        assert_eq!(run.part(), expected, "{weight}");
    }
}

/// The statistics of what comes to a part say nothing of what is made of it inside.
#[test]
fn adaloss_backs_off_and_comes_back() {
    let config = GradScalerConfig::new()
        .with_init_scale(16.0)
        .with_max_scale(Some(16.0))
        .with_growth_interval(2);
    let adaloss = Rescale::adaloss("inner").with_scaler(config).unwrap();
    // 2^-17 comes to the part and asks for 4, and to the parameter 2^31 times that, which holds 2.
    let forward = |net: &Net, x: Tensor<1>| {
        let part =
            |x: Tensor<1>| net.inner.forward(x * two(-12) * two(-12)) * two(15) * two(15) * 2.0;
        net.last.forward(rescaled(adaloss.clone(), x, part))
    };
    let mut run = Run::new();
    let cycle = [(true, 1), (false, 1), (false, 2)];
    let expected = [(false, 2)].into_iter().chain(cycle).chain(cycle);
    for (step, expected) in expected.enumerate() {
        let (skipped, scale) = run.step(-17 - KEPT, forward);
        assert_eq!(
            ((skipped, run.part()), scale),
            (expected, KEPT),
            "step {step}"
        );
    }
}

/// A run that is interrupted, and one that is not.
#[test]
fn records_hold_the_parts() {
    let forward = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(Rescale::adaloss("a"), x, |x| net.inner.forward(x));
        rescaled(dynamic("b", 4), hidden, |x| net.last.forward(x))
    };
    let weight = |step: i32| if step % 4 == 1 { 4 } else { -25 };
    let mut whole = Run::new();
    let mut seen = Vec::new();
    for step in 0..12 {
        seen.push((whole.step(weight(step), forward), whole.parts()));
    }
    assert!(seen.iter().any(|((skipped, _), _)| *skipped));
    for stop in 1..12 {
        let mut run = Run::new();
        for step in 0..stop {
            run.step(weight(step), forward);
        }
        let bytes = run.optim.to_record().into_bytes().unwrap();
        let record = AmpRecord::from_bytes(bytes).unwrap();
        assert!(format!("{record:?}").contains("\"b\""), "{record:?}");
        let mut resumed = Run::new();
        resumed.optim.load_record(record);
        assert_eq!(resumed.parts(), run.parts());
        for step in stop..12 {
            let found = (resumed.step(weight(step), forward), resumed.parts());
            assert_eq!(found, seen[step as usize], "stopped at {stop}, step {step}");
        }
    }
}

#[test]
fn other_settings_of_one_name_are_warned_of() {
    let mut run = Run::new();
    let lines = logs("part `twice` is opened with other settings", || {
        run.step(-4, |net, x| {
            let hidden = rescaled(dynamic("twice", 2), x, |x| net.inner.forward(x));
            rescaled(dynamic("twice", 3), hidden, |x| net.last.forward(x))
        });
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(run.parts(), [("twice".to_string(), 2)]);
    assert!(format!("{:?}", run.amp).contains("(\"twice\", 4.0)"));
}
