//! What single values do to a guard, and what spikes do to a run.

use super::*;

/// One NaN turns the originals off for good, or stops all steps for a window; not here.
#[test]
fn a_nan_does_not_turn_a_guard_off() {
    let run = |guard: Guard| {
        let steps = norms(0..40).chain([(None, f64::NAN)]);
        let steps = steps.chain(norms(40..44)).chain([(None, 100.0)]);
        guard.replay(steps).unwrap()[40..].to_vec()
    };
    for (guard, all) in [(zclip(), 1.0), (outlier(), 1.0), (skip(), 0.0)] {
        let factors = run(guard);
        assert_eq!(factors[..5], [0.0, 1.0, 1.0, 1.0, 1.0], "{guard:?}");
        assert!(factors[5] < 0.05, "{guard:?}");
        assert_eq!(run(original(guard)), [all; 6]);
    }
}

/// Of norms that are all zero a guard has nothing that it could reject others by.
#[test]
fn zeros_do_not_turn_zclip_against_what_follows() {
    let zeros = (0..40).map(|_| (None, 0.0));
    let factors = zclip().replay(zeros.chain(norms(0..80))).unwrap();
    assert!(factors.iter().all(|factor| *factor > 0.0), "{factors:?}");
    assert_eq!(factors[100..], [1.0; 20]);
}

/// Finite, but not in f32: such a value is an outlier, and what is usual stays usual. What it leaves can be stored and loaded.
#[test]
fn a_value_beyond_f32_does_not_turn_a_guard_off() {
    for guard in [zclip(), skip(), outlier()] {
        for at in [3, 40] {
            let case = format!("{guard:?}, {at}");
            let spike = |index| if index == at { 1e39 } else { 1.0 };
            let values = (0..100).map(|index| usual(index) * spike(index));
            let factors = guard.replay(values.clone().map(|norm| (None, norm)));
            let factors = factors.unwrap();
            let is_usual = |index: &usize| *index != at && factors[*index] == 1.0;
            let found = (0..100).filter(is_usual).count();
            assert_eq!(found, 99, "{case}: {factors:?}");

            let mut run = guarded(sgd(), guard);
            for (index, loss) in values.enumerate() {
                step_at(&mut run, loss, usual(index));
            }
            let expected = u64::from(at == 40 && guard != zclip());
            assert_eq!(run.counters().guarded(), expected, "{case}");
            let stored = run.optim.into_bytes().unwrap();
            let loaded = guarded(sgd(), guard).optim.from_bytes(stored);
            loaded.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}

/// The values of steps that were rejected make the originals blind; not here. A new level is accepted all the same.
#[test]
fn spikes_do_not_hide_the_next_ones() {
    let guards = [Guard::skip_step(), Guard::outlier(), Guard::zclip()];
    let steps = (0..220).map(|index: usize| {
        let spike = (150..200).contains(&index) && index.is_multiple_of(10);
        (None, if spike { 100.0 } else { 1.0 } * usual(index))
    });
    let held = |guard: Guard| {
        let factors = guard.replay(steps.clone()).unwrap();
        factors.into_iter().filter(|factor| *factor < 0.05).count()
    };
    assert_eq!(guards.map(held), [5, 5, 5]);
    assert_eq!([guards[0], guards[1]].map(original).map(held), [4, 3]);

    for guard in &guards[..2] {
        let level = (0..200).map(|index| (None, usual(index) + (index / 150) as f64));
        let factors = guard.replay(level).unwrap();
        assert!(factors[150] < 1.0, "{guard:?}");
        assert_eq!(factors[195..], [1.0; 5], "{guard:?}");
    }
}

/// The losses of two layers in half precision that learn a product, at some steps from a loss that is 100 times too large.
fn losses_with(guard: Option<Guard>, spikes: &[usize]) -> Vec<f32> {
    let amp = match on_flex() {
        true => MixedPrecision::f16(),
        false => MixedPrecision::f32(),
    };
    let net = [LinearConfig::new(8, 16), LinearConfig::new(16, 2)];
    let net = fill(net.map(|layer| layer.init(&device())), 1, 0.7);
    let momentum = Some(MomentumConfig::new().with_momentum(0.9));
    let mut run = Player::with(SgdConfig::new().with_momentum(momentum).init(), net, &amp);
    if let Some(guard) = guard {
        run.optim = run.optim.with_hook(guard);
    }
    let mut losses = Vec::new();
    for index in 0..280 {
        let input = random::<2>(1 + 997 * (index % 16), [32, 8], &device()) * 0.7;
        let target = input.clone().narrow(1, 0, 2) * input.clone().narrow(1, 2, 2);
        let [hidden, head] = &run.model;
        let output = amp.autocast(input, |x| head.forward(tanh(hidden.forward(x))));
        let loss = (output - target).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let factor = if spikes.contains(&index) { 100.0 } else { 1.0 };
        run.train(0.1, loss * factor);
    }
    losses
}

#[test]
fn five_spikes_are_over_within_twenty_steps() {
    const SPIKES: [usize; 5] = [150, 175, 200, 225, 250];
    // The loss beside that of a run without spikes: whether it is about as low within 20 steps of each.
    let clean = losses_with(None, &[]);
    let recovers = |guard| {
        let losses = losses_with(guard, &SPIKES);
        SPIKES.map(|spike| {
            let low = |step: usize| losses[step] <= 1.5 * clean[step];
            (spike + 1..spike + 21).any(low)
        })
    };
    for guard in [Guard::zclip(), Guard::skip_step(), Guard::outlier()] {
        assert_eq!(recovers(Some(guard)), [true; 5], "{guard:?}");
    }
    assert!(recovers(None).contains(&false));
}
