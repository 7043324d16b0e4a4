//! A window and averages beside a `GradScaler`: stored in files of their own, resumed exactly, refused where they do not fit.

use crate::support::*;

/// A loop of micro-batches with a scaler alone. Plain SGD has no state that would have to be stored.
struct Loop {
    run: ByHand,
    window: AccumulationWindow,
    ema: Ema,
}

impl Loop {
    fn new(size: u32, rule: bool) -> Self {
        let run = ByHand::of(Pair::of(0.0), at_scale(1024.0).with_growth_interval(2));
        let window = windows(size, rule).init().unwrap();
        let ema = EmaConfig::new().with_momentum(0.9);
        let ema = ema.with_overwrite_frequency(Some(4)).init().unwrap();
        Self { run, window, ema }
    }

    /// After so many micro-batches.
    fn trained(size: u32, rule: bool, end: usize) -> Self {
        let mut one = Self::new(size, rule);
        one.train(0..end);
        one
    }

    fn train(&mut self, micro_batches: Range<usize>) {
        let Self { run, window, ema } = self;
        for k in micro_batches {
            let value = match [10, 16, 20, 31].contains(&k) {
                true => f64::INFINITY,
                false => f64::from(wave(k, 1, 0.03)[0]),
            };
            let Some(grads) = run.accumulate(window, [value; 10]) else {
                continue;
            };
            run.take(grads).unwrap();
            if run.outcome() == Some(StepOutcome::Stepped) {
                run.model = ema.update(run.model.clone());
            }
            run.scaler.update().unwrap();
        }
    }

    /// Scaler, window, averages.
    fn files(&self) -> [Bytes; 3] {
        [self.run.scaler.bits(), self.window.bits(), self.ema.bits()]
    }

    /// These, and the parameters.
    fn snapshot(&self) -> (Vec<f64>, [Pack; 3]) {
        (self.run.model.values(), self.files().map(pack))
    }
}

#[test]
fn a_run_goes_on_bit_for_bit_between_windows_and_inside_them() {
    for rule in RULES {
        let straight = Loop::trained(3, rule, 40);
        let counters = straight.run.counters();
        assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
        assert!(straight.ema.updates() >= 6, "{counters:?}");
        let open = [0, 12, 13, 14, 26].map(|stop| {
            let (first, mut second) = (Loop::trained(3, rule, stop), Loop::new(3, rule));
            let [scaler, window, ema] = first.files();
            second.run.scaler.from_bytes(scaler).unwrap();
            second.window.from_bytes(window).unwrap();
            second.ema.from_bytes(ema).unwrap();
            second.run.model = first.run.model.clone();
            assert_eq!(second.snapshot(), first.snapshot());
            second.train(stop..40);
            assert_eq!(second.snapshot(), straight.snapshot(), "{rule:?}, {stop}");
            !first.window.is_empty()
        });
        assert!(open.iter().filter(|open| **open).count() >= 2, "{open:?}");
    }
}

/// The settings are the program's; empty states are states.
#[test]
fn an_empty_record_empties() {
    let (mut used, empty) = (Loop::trained(3, false, 8), Loop::new(9, false));
    used.window.load_record(empty.window.to_record()).unwrap();
    assert_eq!((used.window.len(), used.window.gradients()), (0, 0));
    assert_eq!(used.window.config().micro_batches, 3);

    let (model, ema) = (&used.run.model, &mut used.ema);
    ema.load_record(empty.ema.to_record()).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (0, 0));
    assert_eq!(ema.config().momentum, 0.9);
    assert_eq!(ema.module(model).values(), model.values());
}

/// What comes of a load, which changes nothing if it fails.
fn loaded_into<F: Files + Clone>(owner: &F, record: &AmpRecord) -> Result<(), AmpError> {
    let mut victim = owner.clone();
    let result = victim.take(record.clone());
    assert!(result.is_ok() || victim.bits() == owner.bits());
    result
}

/// A scaled optimizer's file holds both; files of the wrong kind are refused by name.
#[test]
fn each_file_is_read_as_what_it_holds() {
    let optim = sgd().with_accumulation(3).with_ema(EmaConfig::new());
    let mut run = Trial::new(optim);
    (0..4).for_each(|_| run.step(ONES));
    let both = run.optim.to_record();
    let mut loaded = windows(3, false).init().unwrap();
    loaded.load_record(both.clone()).unwrap();
    let sums = [&loaded, run.optim.window().unwrap()].map(|window| window.sum(&run.model.bias));
    let [found, expected] = sums.map(|sum| values(sum.unwrap()));
    assert_eq!(found, expected);
    let Loop { mut ema, .. } = Loop::new(3, false);
    ema.load_record(both).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (1, 2));

    let Loop { window, ema, .. } = Loop::trained(3, false, 8);
    let scaler = run.optim.scaler();
    let (of_window, of_ema) = (window.to_record(), ema.to_record());
    let (of_scaler, bare) = (scaler.to_record(), sgd().to_record());
    let begun = |size, rule| Loop::trained(size, rule, 1).window;
    let small = "holds 2 micro-batches, but a window has 2 here";
    let rule = "with `skip_micro_batch`";
    let optimizer = |record: &AmpRecord| sgd().load_record(record.clone());
    let a_window = "that of an `AccumulationWindow`";
    let (a_scaler, an_ema) = ("that of a `GradScaler`", "that of the hook `ema`");
    for (result, part) in [
        (loaded_into(&ema, &of_window), a_window),
        (loaded_into(&ema, &of_scaler), a_scaler),
        (loaded_into(&ema, &bare), "no averages"),
        (loaded_into(&window, &of_ema), an_ema),
        (loaded_into(&window, &bare), "no accumulation window"),
        (loaded_into(&begun(2, false), &of_window), small),
        (loaded_into(&begun(4, true), &of_window), rule),
        (loaded_into(scaler, &of_ema), an_ema),
        (loaded_into(scaler, &of_window), "no state of a loss scaler"),
        (optimizer(&of_ema), "no state of an optimizer"),
        (optimizer(&of_window), a_window),
    ] {
        is_error(&result.expect_err(part), "ForeignRecord", [part]);
    }
}
