//! BatchNorm's running statistics, in which Burn has surprises of its own.

use super::support::*;

fn norm() -> BatchNorm {
    BatchNormConfig::new(2).init(&flex())
}

fn forward(norm: &BatchNorm, amp: &MixedPrecision, input: Tensor<3>) -> Tensor<3> {
    amp.autocast(input, |x| in_f32(x, |x| norm.forward(x)))
}

fn input() -> Tensor<3> {
    tensor([4, 2, 3], &flex())
}

/// They move, in f32, whatever the model computes in.
#[test]
fn they_follow_the_f32_model() {
    let [half, full] = [MixedPrecision::f16(), MixedPrecision::f32()].map(|amp| {
        let norm = amp.attach(norm());
        for _ in 0..5 {
            forward(&norm, &amp, input());
        }
        assert_eq!(norm.running_mean.value_sync().dtype(), DType::F32);
        statistics(&norm)[0].clone()
    });
    for (half, full) in half.iter().zip(&full) {
        let (error, least) = ((half - full).abs(), full.abs());
        assert!(error < 1e-3 && least > 1e-3, "{half} {full}");
    }
}

/// Burn's record of a BatchNorm in training lacks the last update, unless `valid` was called before. If this fails, Burn has fixed it, and
/// the warning in the documentation can go. After a step, a record has it.
#[test]
fn a_record_lacks_the_last_update_before_valid() {
    let mean = |norm: &BatchNorm| {
        let record = norm.clone().into_record().into_bytes().unwrap();
        pack(record).tensors.remove("running_mean").unwrap().1
    };
    let mut run = after(0);
    for steps in [false, true, true] {
        match steps {
            true => _ = step(&mut run, GOOD),
            false => _ = forward(&run.model[0], &run.amp, input()),
        }
        let early = mean(&run.model[0]);
        let inference = run.model[0].valid();
        let late = mean(&run.model[0]);
        assert_eq!((early == late, mean(&inference)), (steps, late));
    }
}

/// Two layers, of which the second computes on an input of its own.
type Loop = Player<[BatchNorm; 2]>;

/// What each channel of the first layer's input is multiplied by.
const GOOD: [f32; 2] = [1.0, 1.0];
/// Infinite in f16.
const OVERFLOW: [f32; 2] = [1e6, 1e6];

fn begun(amp: &MixedPrecision) -> Loop {
    Player::new([norm(), norm()], amp)
}

/// After so many steps in which nothing overflows.
fn after(steps: usize) -> Loop {
    let mut run = begun(&MixedPrecision::f16());
    for _ in 0..steps {
        assert!(!step(&mut run, GOOD));
    }
    run
}

fn gradients(run: &Loop, factors: [f32; 2]) -> GradientsParams {
    let factors = Tensor::<1>::from_data(factors, &flex()).reshape([1, 2, 1]);
    let first = forward(&run.model[0], &run.amp, input() * factors);
    let second = forward(&run.model[1], &run.amp, input());
    run.gradients((first + second).square().mean())
}

/// Whether it was skipped.
fn step(run: &mut Loop, factors: [f32; 2]) -> bool {
    run.step(0.1, gradients(run, factors))
}

/// Mean and variance.
fn statistics(norm: &BatchNorm) -> [Vec<f32>; 2] {
    [&norm.running_mean, &norm.running_var].map(|statistic| values(statistic.value_sync()))
}

/// The rule of windows, steps that are good (.), infinite in both channels (!) or in the first (?), or discarded (d), and the good steps that the
/// statistics of each channel are those of; in the end, how many steps were taken, skipped and dropped.
const SCRIPTS: &str = "
each > !! > 0 > 0 > 0 2 0
each > ...!! > 3 > 3 > 3 2 0
each > !!. > 1 > 1 > 1 2 0
each > ...!!. > 4 > 4 > 4 2 0
each > .? > 1 > 2 > 1 1 0
each > .d. > 1 > 1 > 2 0 0
of three > ...!.. > 3 > 3 > 1 1 0
of three > ....!. > 3 > 3 > 1 1 0
of three > .....! > 3 > 3 > 1 1 0
of two, dropped > .!. > 2 > 2 > 1 0 1
";

/// Those that are not finite are those of the last good step, or those with which the layer came, channel by channel; and the run goes on as if there had
/// been no overflow. The step of a window is skipped for one of its micro-batches, the others having moved the statistics; a micro-batch that is dropped takes
/// what it did with it. Gradients that a program throws away have had a forward pass, too, which the next step repairs. Those of a layer that did not
/// overflow have moved, and stay so; clones share them.
#[test]
fn an_overflow_in_the_forward_pass_leaves_the_last_good_ones() {
    for [window, script, one, two, counts] in rows(SCRIPTS) {
        let mut run = after(0);
        let second = run.model[1].clone();
        let dropping = AccumulationConfig::new(2).with_skip_micro_batch(true);
        run.optim = match window {
            "of three" => run.optim.with_accumulation(3),
            "of two, dropped" => run.optim.with_accumulation(dropping),
            _ => run.optim,
        };
        for call in script.chars() {
            match call {
                '.' => _ = step(&mut run, GOOD),
                '!' => _ = step(&mut run, OVERFLOW),
                '?' => _ = step(&mut run, [1e6, 1.0]),
                _ => {
                    let scaler = GradScaler::new(at_scale(1.0)).unwrap();
                    let grads = scaled_by_hand(&scaler, gradients(&run, OVERFLOW));
                    let grads = scaler.unscale(grads, &run.model).unwrap();
                    assert!(grads.has_overflow());
                    run.optim.discard(grads).unwrap();
                }
            }
        }
        let good = |steps: &str| statistics(&after(steps.parse().unwrap()).model[0]);
        let [one, two] = [one, two].map(good);
        let expected = [0, 1].map(|at| vec![one[at][0], two[at][1]]);
        assert_eq!(statistics(&run.model[0]), expected, "{window}: {script}");
        let moved = statistics(&after(script.len()).model[1]);
        for layer in [&run.model[1], &second] {
            assert_eq!(statistics(layer), moved, "{window}: {script}");
        }
        let of = run.counters();
        let found = format!("{} {} {}", of.stepped(), of.skipped(), of.dropped());
        assert_eq!(found, counts, "{window}: {script}");
    }
}

/// The forward pass of one optimizer's loss may go through the module of another, as a generator's does.
#[test]
fn another_optimizers_overflow_is_repaired_by_the_next_step() {
    let amp = MixedPrecision::f16();
    let [mut critic, mut generator] = [begun(&amp), begun(&amp)];
    step(&mut critic, GOOD);
    let good = statistics(&critic.model[0]);
    // Through the critic's layer, for the generator's loss.
    let output = forward(&critic.model[0], &amp, input() * 1e6);
    let own = forward(&generator.model[0], &amp, input());
    assert!(generator.train(0.1, (output * own).mean()));
    assert!(!statistics(&critic.model[0])[0][0].is_finite());
    step(&mut critic, GOOD);
    assert_eq!(statistics(&critic.model[0]), good);
}

/// With a scaler alone. Nobody's forward pass changes a mask, nor what was trained before; what is infinite in them is to be so.
#[test]
fn a_scaler_alone_repairs_them_beside_a_frozen_parameter_which_is_none() {
    let infinite = || Param::from_tensor(Tensor::<1>::full([2], f32::NEG_INFINITY, &flex()));
    let mask = infinite().set_require_grad(false);
    let mut model = (norm(), mask, infinite());
    let mut scaler = default_scaler();
    let mut optim = SgdConfig::new().init();
    no_warning(|| {
        let [good, repaired] = [1.0, f32::INFINITY].map(|factor| {
            let masked = input() * factor + model.1.val().exp().reshape([1, 2, 1]);
            let loss = model.0.forward(masked).square().mean();
            let grads = scaler.backward(loss, &model);
            let grads = scaler.unscale(grads, &model).unwrap();
            model = scaler.step(&mut optim, 0.1, model.clone(), grads);
            scaler.update().unwrap();
            model.2 = model.2.clone().set_require_grad(false);
            statistics(&model.0)
        });
        assert_eq!((scaler.counters().skipped(), good), (1, repaired));
    });
    for frozen in [&model.1, &model.2] {
        assert_eq!(values(frozen.val()), [f32::NEG_INFINITY; 2]);
    }
}

/// Burn shares them between clones, and maps them in place: keep them where a clone goes on.
#[test]
fn converting_a_clone_converts_the_original() {
    let norm = norm();
    let half = to_half(norm.clone(), FloatDType::F16, &[]);
    let dtypes = |norm: &BatchNorm| [norm.gamma.val().dtype(), norm.running_mean.value().dtype()];
    assert_eq!(dtypes(&half), [DType::F16; 2]);
    assert_eq!(dtypes(&norm), [DType::F32, DType::F16]);
}
