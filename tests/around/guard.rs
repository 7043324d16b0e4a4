//! Guards: finite steps far outside of what was usual are clipped or rejected.

mod spikes;

use std::ops::Range;

use crate::support::*;

/// Begins after 8 values.
const SKIP: Guard = Guard::SkipStep {
    rolling_interval_length: 16,
    sigma_factor: 6.0,
    original: false,
};

const OUTLIER: Guard = Guard::Outlier {
    window: 16,
    skip_update_lossz: 3.0,
    skip_update_gradz: 3.0,
    original: false,
};

fn zclip() -> Guard {
    let mut guard = Guard::zclip();
    if let Guard::ZClip { warmup_steps, .. } = &mut guard {
        *warmup_steps = 8;
    }
    guard
}

fn original(mut guard: Guard) -> Guard {
    match &mut guard {
        Guard::ZClip { original, .. }
        | Guard::SkipStep { original, .. }
        | Guard::Outlier { original, .. } => *original = true,
        _ => unreachable!(),
    }
    guard
}

/// About 1, never the same twice in a row.
fn usual(step: usize) -> f32 {
    1.0 + 0.05 * wave(step, 1)[0]
}

/// The same as norms to be replayed.
fn norms(steps: Range<usize>) -> impl Iterator<Item = (Option<f64>, f64)> + Clone {
    steps.map(|index| (None, f64::from(usual(index))))
}

fn growing() -> GradScalerConfig {
    at_scale(1024.0).with_growth_interval(1000)
}

fn adam() -> ScaledOptimizer {
    ScaledOptimizer::new(AdamConfig::new().init(), growing().init().unwrap())
}

impl Trial {
    fn guarded(optim: ScaledOptimizer, guard: Guard) -> Self {
        Self::new(optim.with_guard(guard))
    }

    /// Steps with usual norms, none of which is rejected.
    fn warm(mut self, steps: usize) -> Self {
        for index in 0..steps {
            self.step(norm(usual(index)));
            assert_eq!(self.outcome(), Some(StepOutcome::Stepped), "{index}");
        }
        self
    }

    /// A step with this loss and this norm.
    fn step_at(&mut self, loss: f64, gradient: f32) -> Option<StepOutcome> {
        self.optim.set_loss(loss);
        self.step(norm(gradient));
        self.outcome()
    }

    /// How many steps were rejected.
    fn held(&self) -> u64 {
        self.counters().guarded()
    }

    /// How far a step with a norm of 100 goes.
    fn moved_by_a_spike(&mut self) -> f64 {
        let before = self.values()[0];
        self.step(norm(100.0));
        f64::from(before - self.values()[0])
    }
}

#[test]
fn a_step_that_is_held_back_leaves_no_trace() {
    for guard in [SKIP, OUTLIER] {
        let optim = adam().with_ema(EmaConfig::new().with_momentum(0.5));
        let mut run = Trial::guarded(optim, guard).warm(40);
        let mut without = run.clone();
        let messages = captured(Level::Info, || run.step(norm(100.0)));
        let told = "step rejected by the guard: the gradient norm is 100.0000, where ";
        let mean = messages[0].strip_prefix(told).unwrap();
        let is_about_1 = mean.starts_with("0.99") || mean.starts_with("1.00");
        assert!(is_about_1, "{mean}");
        assert_eq!(run.outcome(), Some(StepOutcome::Guarded));
        assert!((run.status().norm() - 100.0).abs() < 1e-4);
        let schedule = |run: &Trial| run.optim.scaler().schedule();
        assert_eq!(schedule(&run), schedule(&without), "it learns nothing");
        let (counters, before) = (run.counters(), without.counters());
        assert_eq!((counters.guarded(), counters.skipped()), (1, 0));
        assert_eq!(counters.steps(), before.steps() + 1);
        assert_eq!(counters.stepped(), before.stepped());
        let seen = |run: &Trial| (run.values(), run.optim.ema().unwrap().updates());
        assert_eq!(seen(&run), seen(&without), "{guard:?}");

        // And the run goes on as if the step had not been.
        for index in 40..50 {
            run.step(norm(usual(index)));
            without.step(norm(usual(index)));
        }
        assert_eq!(run.values(), without.values());
        assert_eq!(schedule(&run), schedule(&without));
    }
}

#[test]
fn zclip_shortens_a_spike_and_takes_the_step() {
    let mut run = Trial::guarded(sgd(), zclip()).warm(30);
    let mut moved = 0.0;
    let messages = captured(Level::Info, || moved = run.moved_by_a_spike());
    let clipped = |message: &String| message.starts_with("gradients clipped by the guard: ");
    assert!(messages.iter().any(clipped), "{messages:?}");
    assert!((0.95..1.2).contains(&moved), "{moved}");
    assert_eq!((run.outcome(), run.held()), (Some(StepOutcome::Stepped), 0));
    assert!(
        (run.status().norm() - 100.0).abs() < 1e-4,
        "before clipping"
    );
    let coefficient = run.status().clip_coefficient().unwrap();
    assert!((coefficient * 100.0 - moved).abs() < 1e-3);
}

/// Of a guard's coefficient and that of a norm the smaller holds; values are limited after it.
#[test]
fn clipping_goes_with_a_guard() {
    let factors = zclip().replay(norms(0..30).chain([(None, 100.0)]));
    let limit = 100.0 * factors.unwrap()[30];
    for (clip, expected) in [
        (GradientClip::GlobalNorm(0.5), 0.5),
        (GradientClip::GlobalNorm(2.0), limit),
        (GradientClip::Norm(0.25), 0.25),
        (GradientClip::Norm(50.0), limit),
        (GradientClip::Value(0.125), 0.125),
        (GradientClip::Value(50.0), limit),
    ] {
        let in_group = sgd().with_group_clipping(ParamGroup::all(), clip);
        for optim in [sgd().with_clipping(clip), in_group] {
            let mut run = Trial::guarded(optim, zclip()).warm(30);
            let moved = run.moved_by_a_spike();
            assert!((moved - expected).abs() < 1e-4, "{clip:?}: {moved}");
        }
    }
}

#[test]
fn a_loss_is_judged_where_it_is_told() {
    for guard in [SKIP, OUTLIER] {
        let mut run = Trial::guarded(sgd(), guard);
        for index in 0..40 {
            run.step_at(f64::from(2.0 * usual(index + 7)), usual(index));
        }
        let before = run.values();
        assert_eq!(run.step_at(200.0, 1.0), Some(StepOutcome::Guarded));
        assert_eq!(run.values(), before);
        // It was that of one call.
        run.step(norm(1.0));
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
        let messages = captured(Level::Info, || _ = run.step_at(f64::NAN, 1.0));
        says(only(&messages), ["rejected by the guard: the loss is NaN"]);
        assert_eq!(run.outcome(), Some(StepOutcome::Guarded));
    }
}

#[test]
fn of_a_window_the_mean_of_the_losses_is_judged() {
    let mut run = Trial::guarded(sgd().with_accumulation(2), SKIP);
    for index in 0..40 {
        // Each by itself would be an outlier.
        let loss = if index % 2 == 0 { 1000.0 } else { -998.0 };
        run.step_at(loss + f64::from(usual(index / 2)), usual(index));
    }
    assert_eq!((run.counters().stepped(), run.held()), (20, 0));

    let before = run.values();
    run.step_at(2.0, 1.0);
    assert_eq!(run.step_at(2.0, 400.0), Some(StepOutcome::Guarded));
    assert_eq!(run.values(), before);
    assert_eq!(run.len(), 0, "the window is dropped");
    run.step(norm(1.0));
    assert_eq!(run.len(), 1);
    run.flush();
    assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
    assert!(run.values() != before);
}

/// A layer in mixed precision, whose loss is the mean of its outputs times a factor.
struct AtBorder {
    amp: MixedPrecision,
    model: Linear,
    optim: ScaledOptimizer,
}

impl AtBorder {
    fn new(amp: &MixedPrecision, guard: Option<Guard>, from: usize) -> Self {
        let model = LinearConfig::new(4, 1).init(&Device::default().autodiff());
        let optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
        Self {
            model: filled(model, from).apply_reparameterization(amp.clone()),
            optim: match guard {
                Some(guard) => optim.with_guard(guard),
                None => optim,
            },
            amp: amp.clone(),
        }
    }

    fn step(&mut self, lr: impl Into<ModuleLearningRate>, factor: f32) -> Option<StepOutcome> {
        let input = Tensor::<2>::ones([2, 4], &Device::default().autodiff());
        let output = self.amp.autocast(input, |x| self.model.forward(x));
        let grads = (output * factor).mean().backward();
        let grads = GradientsParams::from_grads(grads, &self.model);
        self.model = self.optim.step(lr, self.model.clone(), grads);
        self.optim.scaler().last_outcome()
    }
}

/// f16 at a loss scale that no step here moves.
fn f16() -> MixedPrecision {
    let config = at_scale(8.0).with_growth_interval(100);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

/// The other optimizer steps, and the scale learns from it alone. Where there is no other, a step that is rejected moves nothing of the
/// schedule.
#[test]
fn one_of_two_optimizers_is_guarded() {
    if !on_flex() {
        return;
    }
    let amp = f16();
    let mut guarded = AtBorder::new(&amp, Some(SKIP), 1);
    let mut plain = AtBorder::new(&amp, None, 50_001);
    let mut alone = AtBorder::new(&f16(), Some(SKIP), 1);
    let schedule = LinearLrSchedulerConfig::new(1e-3, 1e-4, 100).init();
    let mut lr = ScaledLrScheduler::new(schedule.unwrap(), &guarded.optim);
    let mut rates = Vec::new();
    for index in 0..31 {
        let rate = lr.step();
        rates.push(rate.base());
        let (factor, expected) = match index {
            29 => (100.0, StepOutcome::Guarded),
            _ => (usual(index), StepOutcome::Stepped),
        };
        let outcomes = [
            guarded.step(rate.clone(), factor),
            alone.step(rate.clone(), factor),
            plain.step(rate, usual(index)),
        ];
        let expected = [expected, expected, StepOutcome::Stepped].map(Some);
        assert_eq!(outcomes, expected, "step {index}");
        assert_eq!([amp.loss_scale(), alone.amp.loss_scale()], [8.0; 2]);
    }
    assert_eq!(alone.optim.scaler().growth_tracker(), 30);
    // 31 iterations: the plain optimizer's finite step counts in the one that was guarded.
    assert_eq!(plain.optim.scaler().growth_tracker(), 31);
    assert!(rates[29] < rates[28]);
    assert_eq!(rates[30], rates[29], "the learning rate waits");
}

/// In f32 nothing tests gradients: the guard measures them, and an infinity is an outlier too.
#[test]
fn without_a_loss_scale() {
    for guard in [SKIP, OUTLIER, zclip()] {
        let amp = MixedPrecision::new(FloatDType::F32);
        let mut run = AtBorder::new(&amp, Some(guard), 1);
        let factors = (0..31).map(usual).chain([f32::INFINITY, f32::NAN]);
        for factor in factors {
            run.step(1e-3, factor);
        }
        let counters = run.optim.scaler().counters();
        assert_eq!((counters.guarded(), counters.stepped()), (2, 31));
        let weight: Vec<f32> = run.model.weight.val().into_data().iter().collect();
        assert!(weight.iter().all(|value| value.is_finite()), "{guard:?}");
    }
}

#[test]
fn a_wrong_setting_is_named() {
    let wrong = [
        r#"{"ZClip": {"alpha": 1}}"#,
        r#"{"ZClip": {"z_thresh": 0}}"#,
        r#"{"ZClip": {"eps": "NaN"}}"#,
        r#"{"ZClip": {"warmup_steps": 0}}"#,
        r#"{"ZClip": {"falloff": -1}}"#,
        r#"{"ZClip": {"clip_factor": "inf"}}"#,
        r#"{"SkipStep": {"rolling_interval_length": 1}}"#,
        r#"{"SkipStep": {"sigma_factor": -1}}"#,
        r#"{"Outlier": {"window": 1048576}}"#,
        r#"{"Outlier": {"window": 16, "skip_update_lossz": 6}}"#,
        r#"{"Outlier": {"skip_update_lossz": 0, "skip_update_gradz": 0}}"#,
    ];
    let messages = wrong.map(|text| {
        let guard = Guard::load_binary(text.as_bytes()).unwrap();
        let error = first_error(sgd().with_guard(guard));
        let config = ScaledOptimizerConfig::new().with_guard(Some(guard));
        let inner = SgdConfig::new().init();
        let found = config.init(inner, &config.precision().unwrap());
        assert_eq!(found.unwrap_err(), error);
        assert_eq!(guard.replay([]).unwrap_err(), error);
        error.to_string()
    });
    let expected = [
        "`alpha` is 1, but must be at least 0 and below 1",
        "`z_thresh` is 0, but must be finite and above 0",
        "`eps` is NaN, but must be finite and at least 0",
        "`warmup_steps` is 0, but must be from 1 to 65536",
        "`falloff` is -1, but must be at least 0",
        "`clip_factor` is inf, but must be finite and above 0",
        "`rolling_interval_length` is 1, but must be from 2 to 65536",
        "`sigma_factor` is -1, but must be finite and above 0",
        "`window` is 1048576, but must be from 2 to 65536",
        "`skip_update_lossz` is 6, but must be at least 0 and below 3.750, the highest z-score in a window of 16",
        "`skip_update_gradz` is 0, but must be above 0, or `skip_update_lossz` must be",
    ];
    assert_eq!(messages, expected);
    let unreached = Guard::Outlier {
        window: 16,
        skip_update_lossz: 6.0,
        skip_update_gradz: 0.0,
        original: true,
    };
    Trial::guarded(sgd(), unreached).step(all(1.0));
}

#[test]
fn it_goes_through_json() {
    for guard in [Guard::zclip(), SKIP, Guard::outlier()] {
        let config = ScaledOptimizerConfig::new().with_guard(Some(guard));
        let text = config.to_string();
        let load = |text: &str| ScaledOptimizerConfig::load_binary(text.as_bytes());
        let loaded = load(&text).unwrap();
        assert_eq!(loaded.guard, Some(guard));
        let scaler = &loaded.precision().unwrap();
        let optim = loaded.init(SgdConfig::new().init(), scaler).unwrap();
        assert_eq!(optim.guard(), Some(&guard));
        assert!(load(&text.replace("original", "originall")).is_err());
    }

    let load = |text: &str| Guard::load_binary(text.as_bytes()).unwrap();
    assert_eq!(load(r#"{"ZClip": {}}"#), Guard::zclip());
    assert_eq!(load(r#"{"SkipStep": {}}"#), Guard::skip_step());
    assert_eq!(load(r#"{"Outlier": {"window": 128}}"#), Guard::outlier());
}

/// In the middle of a window of micro-batches, with losses told.
#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    for guard in [SKIP, OUTLIER, zclip(), original(zclip())] {
        let new = || Trial::guarded(adam().with_accumulation(2), guard);
        let go_on = |run: &mut Trial, steps: Range<usize>| {
            for index in steps {
                let spike = if index % 21 == 20 { 100.0 } else { 1.0 };
                run.step_at(f64::from(usual(index + 3)), spike * usual(index));
            }
        };
        let mut whole = new();
        go_on(&mut whole, 0..101);
        let [mut first, mut second] = [new(), new()];
        go_on(&mut first, 0..51);
        assert_eq!(first.len(), 1);
        let stored = first.optim.into_bytes().unwrap();
        second.optim.from_bytes(stored).unwrap();
        second.model = first.model;
        go_on(&mut second, 51..101);
        assert_eq!(second.values(), whole.values(), "{guard:?}");
        assert_eq!(second.counters(), whole.counters());
        let bytes = |run: &mut Trial| run.optim.into_bytes().unwrap().to_vec();
        assert!(bytes(&mut second) == bytes(&mut whole), "{guard:?}");
    }
}

#[test]
fn a_record_of_another_guard_is_told() {
    let mut donor = Trial::guarded(adam(), SKIP).warm(20);
    let bytes = donor.optim.into_bytes().unwrap();
    let mut loaded = Trial::guarded(adam(), OUTLIER).optim;
    let messages = captured(Level::Warn, || loaded.from_bytes(bytes).unwrap());
    let expected = "the stored state is that of another guard: this one starts again";
    assert_eq!(messages, [expected]);
}
