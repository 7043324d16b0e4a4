//! Guards: clean steps far outside of what was usual are clipped or held back.

use burn_amp_tests::prelude::*;
use log::Level;

use crate::support::{Pair, captured, filled, on_flex, sgd, wave};

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

/// A step with a gradient of this norm.
fn step(optim: &mut ScaledOptimizer, model: Pair, norm: f32) -> Pair {
    let scale = optim.scaler().loss_scale();
    let grads = model.gradients([norm, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 4], scale);
    optim.try_step(0.1, model, grads).unwrap()
}

fn warm(optim: &mut ScaledOptimizer, mut model: Pair, steps: usize) -> Pair {
    for index in 0..steps {
        model = step(optim, model, usual(index));
        assert_eq!(
            optim.scaler().last_outcome(),
            Some(StepOutcome::Stepped),
            "{index}"
        );
    }
    model
}

fn growing() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(1000)
}

#[test]
fn a_step_that_is_held_back_leaves_no_trace() {
    for guard in [SKIP, OUTLIER] {
        let adam = AdamConfig::new().init();
        let mut optim = ScaledOptimizer::new(adam, growing().init().unwrap())
            .with_ema(EmaConfig::new().with_momentum(0.5))
            .unwrap()
            .with_guard(guard)
            .unwrap();
        let model = warm(&mut optim, Pair::zeros(DType::F32), 40);
        let before = (model.values(), optim.ema().unwrap().updates());
        let (mut without, copy) = (optim.clone(), model.clone());
        let (schedule, counters) = (optim.scaler().schedule(), optim.scaler().counters());

        let mut model = Some(model);
        let messages = captured(Level::Info, || {
            model = Some(step(&mut optim, model.take().unwrap(), 100.0));
        });
        let mut model = model.unwrap();
        let told = "step held back by the guard: the gradient norm is 100.0000, where ";
        let mean = messages[0].strip_prefix(told).unwrap();
        assert!(
            mean.starts_with("0.99") || mean.starts_with("1.00"),
            "{mean}"
        );
        let scaler = optim.scaler();
        assert_eq!(scaler.last_outcome(), Some(StepOutcome::Guarded));
        assert!((scaler.last_status().unwrap().norm() - 100.0).abs() < 1e-4);
        assert_eq!(scaler.schedule(), schedule, "the scale learns nothing");
        assert_eq!(scaler.counters().guarded(), 1);
        assert_eq!(scaler.counters().skipped(), 0);
        assert_eq!(scaler.counters().steps(), counters.steps() + 1);
        assert_eq!(scaler.counters().stepped(), counters.stepped());
        assert_eq!(
            (model.values(), optim.ema().unwrap().updates()),
            before,
            "{guard:?}"
        );

        // And the run goes on as if the step had not been.
        let mut other = copy;
        for index in 40..50 {
            model = step(&mut optim, model, usual(index));
            other = step(&mut without, other, usual(index));
        }
        assert_eq!(model.values(), other.values());
        assert_eq!(optim.scaler().schedule(), without.scaler().schedule());
    }
}

#[test]
fn zclip_shortens_a_spike_and_takes_the_step() {
    let mut optim = sgd().with_guard(zclip()).unwrap();
    let model = warm(&mut optim, Pair::zeros(DType::F32), 30);
    let before = model.values()[0];
    let mut model = Some(model);
    let messages = captured(Level::Info, || {
        model = Some(step(&mut optim, model.take().unwrap(), 100.0));
    });
    let clipped = |message: &String| message.starts_with("gradients clipped by the guard: ");
    assert!(messages.iter().any(clipped), "{messages:?}");
    let moved = (before - model.unwrap().values()[0]) / 0.1;
    assert!((0.95..1.2).contains(&moved), "{moved}");
    let scaler = optim.scaler();
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::Stepped));
    assert_eq!(scaler.counters().guarded(), 0);
    let status = scaler.last_status().unwrap();
    assert!((status.norm() - 100.0).abs() < 1e-4, "before clipping");
    let coefficient = status.clip_coefficient().unwrap();
    assert!((coefficient * 100.0 - f64::from(moved)).abs() < 1e-3);
}

/// Of a guard's coefficient and that of a norm the smaller holds; values are limited after it.
#[test]
fn clipping_goes_with_a_guard() {
    let factor = {
        let norms = (0..30).map(|index| (None, f64::from(usual(index))));
        let factors = zclip().replay(norms.chain([(None, 100.0)])).unwrap();
        factors[30]
    };
    let limit = 100.0 * factor;
    for (clip, expected) in [
        (GradientClip::GlobalNorm(0.5), 0.5),
        (GradientClip::GlobalNorm(2.0), limit),
        (GradientClip::Norm(0.25), 0.25),
        (GradientClip::Norm(50.0), limit),
        (GradientClip::Value(0.125), 0.125),
        (GradientClip::Value(50.0), limit),
    ] {
        for in_group in [false, true] {
            let optim = sgd().with_guard(zclip()).unwrap();
            let mut optim = match in_group {
                false => optim.with_clipping(clip),
                true => optim.with_group_clipping(ParamGroup::all(), clip),
            }
            .unwrap();
            let model = warm(&mut optim, Pair::zeros(DType::F32), 30);
            let before = model.values()[0];
            let model = step(&mut optim, model, 100.0);
            let moved = f64::from(before - model.values()[0]) / 0.1;
            assert!((moved - expected).abs() < 1e-4, "{clip:?}: {moved}");
        }
    }
}

#[test]
fn an_overflow_is_none_of_the_guards() {
    let mut optim = sgd().with_guard(SKIP).unwrap();
    let mut model = warm(&mut optim, Pair::zeros(DType::F32), 20);
    let guard = bytes_of(&mut optim);
    model = step(&mut optim, model, f32::INFINITY);
    let counters = optim.scaler().counters();
    assert_eq!((counters.skipped(), counters.guarded()), (1, 0));
    assert_eq!(bytes_of(&mut optim), guard, "it has learned nothing");
    step(&mut optim, model, 100.0);
    assert_eq!(optim.scaler().counters().guarded(), 1);
}

/// What a record says of the guard.
fn bytes_of<O: burn_amp::ModuleOptim>(optim: &mut ScaledOptimizer<O>) -> String {
    let bytes = optim.into_bytes().unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let from = text.find("burn_amp.hook.guard").unwrap();
    let end = text[from..].find("null}").or(text[from..].find("}}"));
    text[from..from + end.unwrap()].to_string()
}

#[test]
fn a_loss_is_judged_where_it_is_told() {
    for guard in [SKIP, OUTLIER] {
        let mut optim = sgd().with_guard(guard).unwrap();
        let mut model = Pair::zeros(DType::F32);
        for index in 0..40 {
            optim.set_loss(f64::from(2.0 * usual(index + 7)));
            model = step(&mut optim, model, usual(index));
        }
        let before = model.values();
        optim.set_loss(200.0);
        model = step(&mut optim, model, 1.0);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Guarded));
        assert_eq!(model.values(), before);
        // It was that of one call.
        model = step(&mut optim, model, 1.0);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        optim.set_loss(f64::NAN);
        step(&mut optim, model, 1.0);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Guarded));
    }
}

#[test]
fn of_a_window_the_mean_of_the_losses_is_judged() {
    let accumulation = AccumulationConfig::new(2);
    let mut optim = sgd()
        .with_accumulation(accumulation)
        .unwrap()
        .with_guard(SKIP)
        .unwrap();
    let mut model = Pair::zeros(DType::F32);
    for index in 0..40 {
        // Each by itself would be an outlier.
        let loss = if index % 2 == 0 { 1000.0 } else { -998.0 };
        optim.set_loss(loss + f64::from(usual(index / 2)));
        model = step(&mut optim, model, usual(index));
    }
    let counters = optim.scaler().counters();
    assert_eq!((counters.stepped(), counters.guarded()), (20, 0));

    let before = model.values();
    for norm in [1.0, 400.0] {
        optim.set_loss(2.0);
        model = step(&mut optim, model, norm);
    }
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Guarded));
    assert_eq!(model.values(), before);
    assert!(optim.window().unwrap().is_empty(), "the window is dropped");
    model = step(&mut optim, model, 1.0);
    assert_eq!(optim.window().unwrap().len(), 1);
    let model = optim.flush(0.1, model);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
    assert!(model.values() != before);
}

/// f16 at a loss scale that no step here moves.
fn f16() -> MixedPrecision {
    let config = GradScalerConfig::new()
        .with_init_scale(8.0)
        .with_growth_interval(100);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

/// The other optimizer steps, and the scale learns from it alone.
#[test]
fn one_of_two_optimizers_is_guarded() {
    if !on_flex() {
        return;
    }
    let device = Device::default().autodiff();
    let amp = f16();
    let new = |from| filled(LinearConfig::new(4, 1).init(&device), from);
    let mut models = [new(1), new(50_001)].map(|model: Linear| {
        let model = model.apply_reparameterization(amp.clone());
        Some(model)
    });
    let guarded = ScaledOptimizer::new(SgdConfig::new().init(), &amp).with_guard(SKIP);
    let plain = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let mut optims = [guarded.unwrap(), plain];
    let mut lr = ScaledLrScheduler::new(
        LinearLrSchedulerConfig::new(1e-3, 1e-4, 100)
            .init()
            .unwrap(),
        &optims[0],
    );
    let mut rates = Vec::new();
    let mut trackers = Vec::new();
    for index in 0..31 {
        let rate = lr.step();
        rates.push(rate.base());
        for (which, (model, optim)) in models.iter_mut().zip(&mut optims).enumerate() {
            let net = model.take().unwrap();
            let input = Tensor::<2>::ones([2, 4], &device);
            let output = amp.autocast(input, |x| net.forward(x));
            let spike = index == 29 && which == 0;
            let factor = if spike { 100.0 } else { usual(index) };
            let grads = (output * factor).mean().backward();
            let grads = GradientsParams::from_grads(grads, &net);
            *model = Some(optim.step(rate.clone(), net, grads));
        }
        trackers.push(amp.loss_scale());
        let outcomes = optims
            .each_ref()
            .map(|o| o.scaler().last_outcome().unwrap());
        let expected = match index {
            29 => [StepOutcome::Guarded, StepOutcome::Stepped],
            _ => [StepOutcome::Stepped; 2],
        };
        assert_eq!(outcomes, expected, "step {index}");
    }
    // 31 iterations: the plain optimizer's clean step counts in the one that was guarded.
    assert_eq!(optims[1].scaler().growth_tracker(), 31);
    assert_eq!(trackers, [8.0; 31]);
    assert!(rates[29] < rates[28]);
    assert_eq!(rates[30], rates[29], "the learning rate waits");
}

/// Alone, a step that is held back moves nothing of the schedule.
#[test]
fn the_scale_learns_nothing_at_the_border() {
    if !on_flex() {
        return;
    }
    let device = Device::default().autodiff();
    let amp = f16();
    let model: Linear = filled(LinearConfig::new(4, 1).init(&device), 1);
    let mut model = model.apply_reparameterization(amp.clone());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp)
        .with_guard(SKIP)
        .unwrap();
    for index in 0..20 {
        let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| model.forward(x));
        let spike = index % 5 == 4 && index > 10;
        let factor = if spike { 100.0 } else { usual(index) };
        let before = optim.scaler().schedule();
        let grads = GradientsParams::from_grads((output * factor).mean().backward(), &model);
        model = optim.step(1e-3, model, grads);
        let expected = before.growth_tracker() + u32::from(!spike);
        assert_eq!(optim.scaler().growth_tracker(), expected, "step {index}");
        assert_eq!(amp.loss_scale(), 8.0);
    }
    assert_eq!(optim.scaler().counters().guarded(), 2);
}

/// In f32 nothing tests gradients: the guard measures them, and an infinity is an outlier too.
#[test]
fn without_a_loss_scale() {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::new(FloatDType::F32);
    for guard in [SKIP, OUTLIER, zclip()] {
        let model: Linear = filled(LinearConfig::new(4, 1).init(&device), 1);
        let mut model = model.apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp)
            .with_guard(guard)
            .unwrap();
        for index in 0..33 {
            let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| model.forward(x));
            let factor = match index {
                31 => f32::INFINITY,
                32 => f32::NAN,
                _ => usual(index),
            };
            let grads = GradientsParams::from_grads((output * factor).mean().backward(), &model);
            model = optim.step(1e-3, model, grads);
        }
        let counters = optim.scaler().counters();
        assert_eq!((counters.guarded(), counters.stepped()), (2, 31));
        let weight: Vec<f32> = model.weight.val().into_data().iter().collect();
        assert!(weight.iter().all(|value| value.is_finite()), "{guard:?}");
    }
}

#[test]
fn a_run_that_is_only_held_back_ends() {
    let config = growing().with_max_consecutive_skips(Some(3));
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), config.init().unwrap())
        .with_guard(SKIP)
        .unwrap();
    let mut model = warm(&mut optim, Pair::zeros(DType::F32), 10);
    for _ in 0..3 {
        optim.set_loss(f64::NAN);
        model = step(&mut optim, model, 1.0);
    }
    let before = model.values();
    optim.set_loss(f64::NAN);
    let grads = model.gradients([1.0; 6], [0.0; 4], optim.scaler().loss_scale());
    let failed = optim.try_step(0.1, model, grads).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the guard held back 4 steps in a row, the last because the loss is NaN. Look at the inputs, the learning rate and the \
         loss, or give it a higher threshold"
    );
    assert!(matches!(
        failed.error,
        AmpError::AlwaysGuarded { steps: 4, .. }
    ));
    assert_eq!(failed.module.values(), before);
    assert_eq!(optim.scaler().counters().guarded(), 4);
    // A clean step ends the row.
    let model = step(&mut optim, *failed.module, 1.0);
    optim.set_loss(f64::NAN);
    step(&mut optim, model, 1.0);
}

/// One NaN turns the originals off for good, or stops all steps for a window; not here.
#[test]
fn a_nan_does_not_turn_a_guard_off() {
    let before = (0..40).map(|index| (None, f64::from(usual(index))));
    let after = (40..44).map(|index| (None, f64::from(usual(index))));
    let run = |guard: Guard| {
        let steps = before.clone().chain([(None, f64::NAN)]);
        let steps = steps.chain(after.clone()).chain([(None, 100.0)]);
        guard.replay(steps).unwrap()[40..].to_vec()
    };
    let spike = |factors: &[f64]| factors[5];
    for guard in [zclip(), OUTLIER, SKIP] {
        let factors = run(guard);
        assert_eq!(factors[..5], [0.0, 1.0, 1.0, 1.0, 1.0], "{guard:?}");
        assert!(spike(&factors) < 0.05, "{guard:?}");
    }
    assert_eq!(run(original(zclip())), [1.0; 6]);
    assert_eq!(run(original(OUTLIER)), [1.0; 6]);
    assert_eq!(run(original(SKIP)), [0.0; 6]);
}

/// Finite, but not in f32: such a value is an outlier, and what is usual stays usual. What it leaves can be stored and loaded.
#[test]
fn a_value_beyond_f32_does_not_turn_a_guard_off() {
    for guard in [zclip(), SKIP, OUTLIER] {
        for at in [3, 40] {
            let spike = |index| if index == at { 1e39 } else { 1.0 };
            let values = (0..100).map(|index| f64::from(usual(index)) * spike(index));
            let norms: Vec<_> = values.clone().map(|norm| (None, norm)).collect();
            let factors = guard.replay(norms).unwrap();
            let usual = |index: &usize| *index != at && factors[*index] == 1.0;
            assert_eq!(
                (0..100).filter(usual).count(),
                99,
                "{guard:?}, {at}: {factors:?}"
            );

            let new = || sgd().with_guard(guard).unwrap();
            let (mut optim, mut model) = (new(), Pair::zeros(DType::F32));
            for (index, loss) in values.enumerate() {
                optim.set_loss(loss);
                model = step(&mut optim, model, self::usual(index));
            }
            let held = optim.scaler().counters().guarded();
            assert_eq!(
                held,
                u64::from(at == 40 && guard != zclip()),
                "{guard:?}, {at}"
            );
            let stored = optim.into_bytes().unwrap();
            new()
                .from_bytes(stored)
                .unwrap_or_else(|error| panic!("{guard:?}, {at}: {error}"));
        }
    }
}

/// The values of steps that were held back make the originals blind; not here. A new level is accepted all the same.
#[test]
fn spikes_do_not_hide_the_next_ones() {
    let guards = [Guard::skip_step(), Guard::outlier(), Guard::zclip()];
    let steps = |index: usize| {
        let spike = index >= 150 && (index - 150).is_multiple_of(10) && index < 200;
        let factor = if spike { 100.0 } else { 1.0 };
        (None, f64::from(factor * usual(index)))
    };
    let held = |guard: Guard| {
        let factors = guard.replay((0..220).map(steps)).unwrap();
        (0..220).filter(|index| factors[*index] < 0.05).count()
    };
    assert_eq!(guards.map(held), [5, 5, 5]);
    assert_eq!(held(original(guards[0])), 4);
    assert_eq!(held(original(guards[1])), 3);

    for guard in &guards[..2] {
        let level = (0..200).map(|index| (None, f64::from(usual(index) + (index / 150) as f32)));
        let factors = guard.replay(level).unwrap();
        assert!(factors[150] < 1.0, "{guard:?}");
        assert_eq!(factors[195..], [1.0; 5], "{guard:?}");
    }
}

#[test]
fn a_wrong_setting_is_named() {
    let zclip = |change: fn(&mut Guard)| {
        let mut guard = Guard::zclip();
        change(&mut guard);
        guard
    };
    macro_rules! with {
        ($field:ident, $value:expr) => {
            zclip(|guard| match guard {
                Guard::ZClip { $field, .. } => *$field = $value,
                _ => unreachable!(),
            })
        };
    }
    let skip = |rolling_interval_length, sigma_factor| Guard::SkipStep {
        rolling_interval_length,
        sigma_factor,
        original: false,
    };
    let outlier = |window, skip_update_lossz, skip_update_gradz| Guard::Outlier {
        window,
        skip_update_lossz,
        skip_update_gradz,
        original: false,
    };
    for (guard, message) in [
        (
            with!(alpha, 1.0),
            "`alpha` is 1, but must be at least 0 and below 1",
        ),
        (
            with!(z_thresh, 0.0),
            "`z_thresh` is 0, but must be finite and above 0",
        ),
        (
            with!(eps, f64::NAN),
            "`eps` is NaN, but must be finite and at least 0",
        ),
        (
            with!(warmup_steps, 0),
            "`warmup_steps` is 0, but must be from 1 to 65536",
        ),
        (
            with!(falloff, -1.0),
            "`falloff` is -1, but must be at least 0",
        ),
        (
            with!(clip_factor, f64::INFINITY),
            "`clip_factor` is inf, but must be finite and above 0",
        ),
        (
            skip(1, 6.0),
            "`rolling_interval_length` is 1, but must be from 2 to 65536",
        ),
        (
            skip(128, -1.0),
            "`sigma_factor` is -1, but must be finite and above 0",
        ),
        (
            outlier(1 << 20, 6.0, 6.0),
            "`window` is 1048576, but must be from 2 to 65536",
        ),
        (
            outlier(16, 6.0, 3.0),
            "`skip_update_lossz` is 6, but must be at least 0 and below 3.750, the highest z-score in a window of 16",
        ),
        (
            outlier(16, 0.0, 0.0),
            "`skip_update_gradz` is 0, but must be above 0, or `skip_update_lossz` must be",
        ),
    ] {
        let error = sgd().with_guard(guard).unwrap_err();
        assert_eq!(error.to_string(), message);
        let config = ScaledOptimizerConfig::new().with_guard(Some(guard));
        let scaler = config.scaler.init().unwrap();
        assert_eq!(
            config.init(SgdConfig::new().init(), scaler).unwrap_err(),
            error
        );
        assert_eq!(guard.replay([]).unwrap_err(), error);
    }
    assert!(sgd().with_guard(original(outlier(16, 6.0, 0.0))).is_ok());
}

#[test]
fn it_goes_through_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for guard in [Guard::zclip(), SKIP, Guard::outlier()] {
        let config = ScaledOptimizerConfig::new().with_guard(Some(guard));
        config.save(&path).unwrap();
        let loaded = ScaledOptimizerConfig::load(&path).unwrap();
        assert_eq!(loaded.guard, Some(guard));
        let scaler = loaded.scaler.init().unwrap();
        let optim = loaded.init(SgdConfig::new().init(), scaler).unwrap();
        assert_eq!(optim.guard(), Some(&guard));
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("window", "widow")).unwrap();
    assert!(ScaledOptimizerConfig::load(&path).is_err());

    let load = |text: &str| Guard::load_binary(text.as_bytes()).unwrap();
    assert_eq!(load(r#"{"ZClip": {}}"#), Guard::zclip());
    assert_eq!(load(r#"{"SkipStep": {}}"#), Guard::skip_step());
    assert_eq!(load(r#"{"Outlier": {"window": 128}}"#), Guard::outlier());
}

/// In the middle of a window of micro-batches, with losses told.
#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    for guard in [SKIP, OUTLIER, zclip(), original(zclip())] {
        let new = || {
            let optim = ScaledOptimizer::new(AdamConfig::new().init(), growing().init().unwrap());
            let optim = optim.with_accumulation(2).unwrap();
            optim.with_guard(guard).unwrap()
        };
        let run = |optim: &mut ScaledOptimizer, mut model: Pair, steps: std::ops::Range<usize>| {
            for index in steps {
                let spike = if index % 21 == 20 { 100.0 } else { 1.0 };
                optim.set_loss(f64::from(usual(index + 3)));
                model = step(optim, model, spike * usual(index));
            }
            model
        };
        let mut whole = new();
        let expected = run(&mut whole, Pair::zeros(DType::F32), 0..101);

        let mut first = new();
        let model = run(&mut first, Pair::zeros(DType::F32), 0..51);
        assert_eq!(first.window().unwrap().len(), 1);
        let bytes = first.into_bytes().unwrap();
        let mut second = new();
        second.from_bytes(bytes).unwrap();
        let found = run(&mut second, model, 51..101);
        assert_eq!(found.values(), expected.values(), "{guard:?}");
        assert_eq!(second.scaler().counters(), whole.scaler().counters());
        let bytes = |optim: &mut ScaledOptimizer| optim.into_bytes().unwrap().to_vec();
        assert!(bytes(&mut second) == bytes(&mut whole), "{guard:?}");
    }
}

#[test]
fn a_record_of_another_guard_or_of_none_is_told() {
    let with = |guard: Option<Guard>| {
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), growing().init().unwrap());
        match guard {
            Some(guard) => optim.with_guard(guard).unwrap(),
            None => optim,
        }
    };
    let stored = |guard| {
        let mut optim = with(guard);
        warm(&mut optim, Pair::zeros(DType::F32), 20);
        optim.into_bytes().unwrap()
    };
    for (from, to, message) in [
        (
            Some(SKIP),
            Some(OUTLIER),
            "the stored state is that of another guard: this one starts again",
        ),
        (
            None,
            Some(SKIP),
            "memory holds no state of the hook `guard`, which starts again, after 20 steps",
        ),
        (
            Some(SKIP),
            None,
            "memory holds the state of the hook `guard`, which is not here: it is dropped",
        ),
    ] {
        let record = AmpRecord::from_bytes(stored(from)).unwrap();
        let mut optim = with(to);
        let messages = captured(Level::Warn, || optim.load_record(record).unwrap());
        assert_eq!(messages, [message]);
    }
}

/// Two layers in half precision; five steps have a loss that is 100 times too large.
#[test]
fn five_spikes_are_over_within_twenty_steps() {
    #[derive(Module, Debug)]
    struct Net {
        hidden: Linear,
        head: Linear,
    }

    const SPIKES: [usize; 5] = [150, 175, 200, 225, 250];
    let device = Device::default().autodiff();
    let amp = || match on_flex() {
        true => MixedPrecision::f16(),
        false => MixedPrecision::f32(),
    };
    let run = |guard: Option<Guard>, spikes: &[usize]| -> Vec<f32> {
        let amp = amp();
        let net = Net {
            hidden: LinearConfig::new(8, 16).init(&device),
            head: LinearConfig::new(16, 2).init(&device),
        };
        let mut net = filled(net, 1).apply_reparameterization(amp.clone());
        let momentum = MomentumConfig::new().with_momentum(0.9);
        let sgd = SgdConfig::new().with_momentum(Some(momentum)).init();
        let optim = ScaledOptimizer::new(sgd, &amp);
        let mut optim = match guard {
            Some(guard) => optim.with_guard(guard).unwrap(),
            None => optim,
        };
        let tensor = |from: usize, [rows, columns]: [usize; 2]| {
            let data = TensorData::new(wave(from, rows * columns), [rows, columns]);
            Tensor::<2>::from_data(data, &device)
        };
        let mut losses = Vec::new();
        for index in 0..280 {
            let input = tensor(1 + 997 * (index % 16), [32, 8]);
            let target = input.clone().narrow(1, 0, 2) * input.clone().narrow(1, 2, 2);
            let forward = |x| net.head.forward(tanh(net.hidden.forward(x)));
            let output = amp.autocast(input, forward);
            let loss = (output - target).square().mean();
            losses.push(loss.clone().into_scalar::<f32>());
            let factor = if spikes.contains(&index) { 100.0 } else { 1.0 };
            let grads = GradientsParams::from_grads((loss * factor).backward(), &net);
            net = optim.step(0.1, net, grads);
        }
        losses
    };
    // The loss beside that of a run without spikes: whether it is about as low within 20 steps of each.
    let clean = run(None, &[]);
    let recovers = |losses: &[f32]| {
        SPIKES.map(|spike| {
            let after = spike + 1..spike + 21;
            after
                .into_iter()
                .any(|step| losses[step] <= 1.5 * clean[step])
        })
    };
    let guards = [Guard::zclip(), Guard::skip_step(), Guard::outlier()];
    for guard in guards {
        let losses = run(Some(guard), &SPIKES);
        assert_eq!(recovers(&losses), [true; 5], "{guard:?}");
    }
    let unguarded = run(None, &SPIKES);
    assert!(recovers(&unguarded).contains(&false));
}
