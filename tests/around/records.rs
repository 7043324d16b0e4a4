//! Records of an open window and of averages: of an optimizer, or in files of their own; refused where they do not fit, readable by plain Burn.
//! That runs resume from them, and clones go their own way, `tests/oracle` draws.

use tempfile::tempdir;

use crate::support::*;

fn with_ema() -> ScaledOptimizer {
    sgd().with_ema(EmaConfig::new())
}

/// Two applied steps with averages, then one of two micro-batches.
fn trained() -> Trial {
    let mut run = Trial::new(with_ema().with_accumulation(2));
    (1..6).for_each(|k| run.step([f64::from(k); 10]));
    assert_eq!((run.window(), run.optim.ema().unwrap().updates()), (1, 2));
    run
}

/// With f32 copies of f16 parameters, and from the middle of a window, which the oracle has not.
#[test]
fn a_run_with_masters_goes_on_bit_for_bit() {
    let folder = tempdir().unwrap();
    for rule in RULES {
        let adam = || MasterWeights::new(AdamConfig::new().build());
        let build = || Run::half(adam()).with_all(rule);
        let [half, end] = resumed(folder.path(), build, 23, 60);
        let found = end.counters;
        let bad = found.skipped() + found.dropped();
        assert!(bad >= 3 && found.stepped() >= 10, "{found:?}");
        assert!(half.window > 0);
    }
}

#[test]
fn the_record_says_what_it_holds() {
    let record = trained().optim.to_record();
    // Plain SGD has no tensors of its own.
    let holds = |record: &AmpRecord| (record.window(), record.averages(), record.num_tensors());
    let read = AmpRecord::from_bytes(record.bits()).unwrap();
    says(&format!("{read:?}"), ["window: 1", "hooks: [\"ema\"]"]);
    assert_eq!([&record, &read].map(holds), [(1, 2, 0); 2]);
    let record = read.without_window().without_averages();
    assert_eq!(holds(&record), (0, 0, 0));
    sgd().load_record(record).unwrap();
}

/// Averages that go missing are not replaced without a word; where there were none yet, there is nothing to say. Those of the run that is
/// resumed were not kept, or are older than the hook.
#[test]
fn an_older_record_starts_window_and_averages_afresh() {
    let load = |optim: &mut ScaledOptimizer, record: AmpRecord| {
        captured(Level::Warn, || optim.load_record(record).unwrap()).join("\n")
    };
    let mut run = trained();
    let logged = load(&mut run.optim, sgd().to_record());
    says(&logged, ["no state of the hook `ema`"]);
    assert_eq!((run.window(), run.optim.ema().unwrap().updates()), (0, 0));
    assert_eq!(run.averages(), run.values());

    let record = || trained().optim.to_record().without_window();
    let bare = || record().without_averages();
    says(&load(&mut with_ema(), bare()), ["after 2 steps"]);
    assert_eq!(load(&mut with_ema(), sgd().to_record()), "");
    assert_eq!(load(&mut sgd(), bare()), "");
}

/// The settings are the program's; empty states are states. Each file is read as what it holds, also that of an optimizer which holds both.
#[test]
fn a_window_and_averages_of_their_own() {
    let mut run = trained();
    let both = run.optim.to_record();
    let empty = windows(9, false).init().unwrap();
    let mut window = windows(3, false).init().unwrap();
    let mut ema = EmaConfig::new().with_momentum(0.9).init().unwrap();
    window.load_record(both.clone()).unwrap();
    let sums = [&window, run.optim.window().unwrap()].map(|window| window.sum(&run.model.bias));
    let [found, expected] = sums.map(|sum| values(sum.unwrap()));
    assert_eq!(found, expected);
    window.load_record(empty.to_record()).unwrap();
    assert_eq!((window.len(), window.gradients()), (0, 0));
    assert_eq!(window.config().micro_batches, 3);

    ema.load_record(both).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (2, 2));
    let fresh = EmaConfig::new().init().unwrap();
    ema.load_record(fresh.to_record()).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (0, 0));
    assert_eq!(ema.config().momentum, 0.9);
    assert_eq!(ema.module(&run.model).values(), run.values());
}

/// What comes of a load, which changes nothing if it fails.
fn loaded_into<F: Files + Clone>(owner: &F, record: &AmpRecord) -> Result<(), AmpError> {
    let mut victim = owner.clone();
    let result = victim.take(record.clone());
    assert!(result.is_ok() || victim.bits() == owner.bits());
    result
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let stored = trained().optim.to_record();
    let load = |optim: ScaledOptimizer, record: &AmpRecord| {
        let mut run = Trial::new(optim);
        run.step(ONES);
        let load = |optim: &mut ScaledOptimizer| optim.load_record(record.clone());
        Err(refused(&mut run.optim, load))
    };
    let mut by_hand = ByHand::of(Pair::of(0.0), at_scale(1024.0));
    let mut begun = |size, rule| {
        let mut window = windows(size, rule).init().unwrap();
        by_hand.accumulate(&mut window, ONES);
        window
    };
    let [small, each, window] = [begun(2, false), begun(4, true), begun(3, false)];
    let mut two = window.clone();
    by_hand.accumulate(&mut two, ONES);
    let two = two.to_record();
    let mut ema = EmaConfig::new().init().unwrap();
    ema.update(Pair::of(0.0));
    let scaler = &by_hand.scaler;
    let (of_ema, of_scaler, bare) = (ema.to_record(), scaler.to_record(), sgd().to_record());
    let (a_window, an_ema) = ("that of an `AccumulationWindow`", "that of the hook `ema`");
    let full = "holds 2 micro-batches, but a window has 2 here";
    let no_hook = "the hook `ema`, which is not here";
    for (result, part) in [
        (load(with_ema(), &stored), "no accumulation here"),
        (load(sgd().with_accumulation(2), &stored), no_hook),
        (load(with_ema().with_accumulation(1), &stored), "has 1 here"),
        (load(sgd(), &of_ema), "no state of an optimizer"),
        (load(sgd(), &two), a_window),
        (loaded_into(&ema, &two), a_window),
        (loaded_into(&ema, &of_scaler), "that of a `GradScaler`"),
        (loaded_into(&ema, &bare), "no averages"),
        (loaded_into(&window, &of_ema), an_ema),
        (loaded_into(&window, &bare), "no accumulation window"),
        (loaded_into(&small, &two), full),
        (loaded_into(&each, &two), "with `skip_micro_batch`"),
        (loaded_into(scaler, &of_ema), an_ema),
        (loaded_into(scaler, &two), "no state of a loss scaler"),
    ] {
        is_error(&result.expect_err(part), "ForeignRecord", [part]);
    }
}

/// On CubeCL devices a read is done when the values are looked at, so that a step in place would show in it. Moments, masters, an open window,
/// averages: all of a record. Nor does a copy of the model change, nor the record of the optimizer by itself. (Burn's own may.)
#[test]
fn what_was_read_before_a_step_stays() {
    fn check<O: ModuleOptim>(optim: O, dtype: DType, is_burns: bool) {
        let optim = under(at_scale(16.0), optim).with_accumulation(2);
        let mut run = Trial::new(optim.with_ema(EmaConfig::new())).with_dtype(dtype);
        let gradient = from_fn(|index| index as f64 * 0.25 - 1.0);
        let go_on = |run: &mut Trial<O>| (0..5).for_each(|_| run.step(gradient));
        go_on(&mut run);
        let (before, held) = (contents(&mut run.optim), run.optim.to_record());
        let optim = run.optim.optimizer();
        let (inner, own) = (state(optim), optim.to_record());
        let (copy, values) = (run.model.clone(), run.values());
        go_on(&mut run);
        assert!(contents(&mut run.optim) != before);
        let held = pack(held.into_bytes().unwrap());
        assert!(held == before, "the record has changed");
        let own = pack(own.unwrap().into_bytes().unwrap());
        assert!(is_burns || own == inner, "the optimizer's has changed");
        assert_eq!(copy.values(), values);
    }
    let masters = || MasterWeights::new(AdamConfig::new().build());
    check(masters(), DType::F32, false);
    check(masters(), DType::F16, false);
    check(AdamConfig::new().init(), DType::F32, true);
    check(FusedAdam::new(AdamConfig::new()), DType::F32, false);
}

/// A sum that was read from an open window is not added to.
#[test]
fn a_sum_that_was_read_stays() {
    let mut run = ByHand::of(Pair::of(0.0), at_scale(65536.0));
    let mut window = AccumulationConfig::new(9).init().unwrap();
    for count in 1..4 {
        run.accumulate(&mut window, ONES);
        let sum = window.sum(&run.model.bias).unwrap();
        let read = sum.to_data();
        // Under fusion Burn adds the sums, and changes what it has read itself: until then, the handle keeps it.
        let held = cfg!(feature = "fusion").then_some(sum);
        run.accumulate(&mut window.clone(), ONES);
        let expected = count as f32 * 65536.0;
        assert_eq!(read.as_slice::<f32>().unwrap()[2], expected);
        drop(held);
    }
}
