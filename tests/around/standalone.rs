//! A window and averages beside a `GradScaler`: stored in files of their own, resumed exactly, refused where they do not fit.

use crate::support::*;

const INFINITE: [usize; 4] = [10, 16, 20, 31];
const END: usize = 40;

/// A loop of micro-batches with a scaler alone. Plain SGD has no state that would have to be stored.
struct Run {
    model: Pair,
    scaler: GradScaler,
    window: AccumulationWindow,
    ema: Ema,
}

impl Run {
    fn new(rule: bool) -> Self {
        let ema = EmaConfig::new()
            .with_momentum(0.9)
            .with_overwrite_frequency(Some(4));
        Self {
            model: Pair::zeros(DType::F32),
            scaler: sgd().scaler().clone(),
            window: window(3, rule),
            ema: ema.init().unwrap(),
        }
    }

    fn train(&mut self, micro_batches: std::ops::Range<usize>) {
        for k in micro_batches {
            let value = match INFINITE.contains(&k) {
                true => f32::INFINITY,
                false => wave(k, 1)[0],
            };
            let (scaler, model) = (&mut self.scaler, self.model.clone());
            let grads = model.gradients(all(value), scaler.loss_scale());
            let full = scaler.accumulate(&mut self.window, grads, &model).unwrap();
            let Some(grads) = full else {
                continue;
            };
            let mut optim = SgdConfig::new().init();
            self.model = scaler.try_step(&mut optim, 0.05, model, grads).unwrap();
            if scaler.last_outcome() == Some(StepOutcome::Stepped) {
                self.model = self.ema.update(self.model.clone());
            }
            scaler.update().unwrap();
        }
    }

    /// Parameters; scaler, window, averages.
    fn snapshot(&self) -> (Vec<f32>, [Pack; 3]) {
        let stored = [self.scaler.bits(), self.window.bits(), self.ema.bits()];
        (self.model.values(), stored.map(pack))
    }
}

#[test]
fn a_run_goes_on_bit_for_bit_between_windows_and_inside_them() {
    for rule in RULES {
        let mut straight = Run::new(rule);
        straight.train(0..END);
        let counters = straight.scaler.counters();
        assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
        assert!(straight.ema.updates() >= 6, "{counters:?}");

        let mut open = 0;
        for stop in [0, 12, 13, 14, 26] {
            let (mut first, mut second) = (Run::new(rule), Run::new(rule));
            first.train(0..stop);
            open += u32::from(!first.window.is_empty());
            second.scaler.from_bytes(first.scaler.bits()).unwrap();
            second.window.from_bytes(first.window.bits()).unwrap();
            second.ema.from_bytes(first.ema.bits()).unwrap();
            second.model = first.model.clone();
            assert_eq!(second.snapshot(), first.snapshot());
            second.train(stop..END);
            assert_eq!(second.snapshot(), straight.snapshot(), "{rule:?}, {stop}");
        }
        assert!(open >= 2, "no stop was inside a window");
    }
}

/// A window of two micro-batches out of three, and averages of two updates.
fn state(rule: bool) -> Run {
    let mut run = Run::new(rule);
    run.train(0..8);
    run
}

fn averages() -> Ema {
    EmaConfig::new().init().unwrap()
}

/// The sum of the bias's gradients.
fn sum(window: &AccumulationWindow, model: &Pair) -> Vec<f32> {
    values(window.sum(&model.bias).unwrap())
}

fn window(size: u32, rule: bool) -> AccumulationWindow {
    windows(size, rule).init().unwrap()
}

/// The settings are the program's; empty states are states.
#[test]
fn an_empty_record_empties() {
    let Run {
        window: mut donor,
        mut ema,
        model,
        ..
    } = state(false);
    donor.load_record(window(9, false).to_record()).unwrap();
    assert!(donor.is_empty() && donor.gradients() == 0);
    assert_eq!(donor.config().micro_batches, 3);

    ema.load_record(averages().to_record()).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (0, 0));
    assert_eq!(ema.config().momentum, 0.9);
    assert_eq!(ema.module(&model).values(), model.values());
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
    let optim = sgd().with_accumulation(3);
    let mut run = Trial::new(optim.with_ema(EmaConfig::new()));
    (0..4).for_each(|_| run.step(all(2.0)));
    let Trial { mut optim, model } = run;
    let both = optim.into_bytes().unwrap();
    let mut loaded = window(3, false);
    loaded.from_bytes(both.clone()).unwrap();
    let expected = sum(optim.window().unwrap(), &model);
    assert_eq!(sum(&loaded, &model), expected);
    let mut ema = averages();
    ema.from_bytes(both).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (1, 2));

    let Run {
        window: donor, ema, ..
    } = state(false);
    let (of_window, of_ema) = (donor.to_record(), ema.to_record());
    let (of_scaler, bare) = (optim.scaler().to_record(), sgd().to_record());
    let begun = |size, rule| {
        let mut run = Run::new(rule);
        run.window = self::window(size, rule);
        run.train(0..1);
        run.window
    };
    let small = "holds 2 micro-batches, but a window has 2 here";
    let averages = |record: &AmpRecord| loaded_into(&ema, record);
    let window = |record: &AmpRecord| loaded_into(&donor, record);
    let scaler = |record: &AmpRecord| loaded_into(optim.scaler(), record);
    let optimizer = |record: &AmpRecord| sgd().load_record(record.clone());
    for (result, part) in [
        (averages(&of_window), "that of an `AccumulationWindow`"),
        (averages(&of_scaler), "that of a `GradScaler`"),
        (averages(&bare), "no averages"),
        (window(&of_ema), "that of the hook `ema`"),
        (window(&bare), "no accumulation window"),
        (loaded_into(&begun(2, false), &of_window), small),
        (
            loaded_into(&begun(4, true), &of_window),
            "with `skip_micro_batch`",
        ),
        (scaler(&of_ema), "that of the hook `ema`"),
        (scaler(&of_window), "no state of a loss scaler"),
        (optimizer(&of_ema), "no state of an optimizer"),
        (optimizer(&of_window), "that of an `AccumulationWindow`"),
        (optimizer(&of_scaler), "that of a `GradScaler`"),
    ] {
        is_error(&result.expect_err(part), "ForeignRecord", [part]);
    }
}
