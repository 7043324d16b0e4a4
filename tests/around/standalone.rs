//! A window and averages beside a `GradScaler`: stored in files of their own, resumed exactly, refused where they do not fit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use std::path::Path;
use tempfile::tempdir;

use crate::support::{Files, Pack, Pair, damaged, filled, pack, sgd, values, wave};

const RULES: [bool; 2] = [false, true];
const INFINITE: [usize; 4] = [4, 16, 20, 31];
const END: usize = 40;

struct Run {
    amp: MixedPrecision,
    model: Linear,
    optim: ModuleOptimizer,
    scaler: GradScaler,
    window: AccumulationWindow,
    ema: Ema,
    done: usize,
}

#[derive(Debug, PartialEq)]
struct Snapshot {
    parameters: Pack,
    optim: Pack,
    scaler: Pack,
    window: Pack,
    ema: Pack,
}

impl Run {
    fn new(rule: bool) -> Self {
        let model = LinearConfig::new(6, 2).init(&Device::default().autodiff());
        let scaler = GradScalerConfig::new().with_growth_interval(5);
        let amp = MixedPrecision::f16().with_scaler(scaler).unwrap();
        let window = AccumulationConfig::new(3).with_skip_micro_batch(rule);
        let ema = EmaConfig::new()
            .with_momentum(0.9)
            .with_overwrite_frequency(Some(4));
        Self {
            model: filled(model, 0).apply_reparameterization(amp.clone()),
            optim: AdamConfig::new().init(),
            scaler: GradScaler::from(&amp),
            amp,
            window: window.init().unwrap(),
            ema: ema.init().unwrap(),
            done: 0,
        }
    }

    fn train_until(&mut self, end: usize) {
        let device = Device::default().autodiff();
        while self.done < end {
            let input = TensorData::new(wave(100 * self.done, 24), [4, 6]);
            let input = Tensor::<2>::from_data(input, &device);
            let mut output = self.amp.autocast(input, |x| self.model.forward(x));
            if INFINITE.contains(&self.done) {
                output = output * f32::INFINITY;
            }
            let grads = output.square().mean().backward();
            let grads = GradientsParams::from_grads(grads, &self.model);
            self.done += 1;
            let (scaler, window) = (&mut self.scaler, &mut self.window);
            let full = scaler.accumulate(window, grads, &self.model).unwrap();
            let Some(grads) = full else {
                continue;
            };
            let model = self.model.clone();
            self.model = scaler
                .try_step(&mut self.optim, 0.05, model, grads)
                .unwrap();
            if scaler.last_outcome() == Some(StepOutcome::Stepped) {
                self.model = self.ema.update(self.model.clone());
            }
            scaler.update().unwrap();
        }
    }

    fn save(&self, folder: &Path) {
        self.model.clone().save_file(folder.join("model")).unwrap();
        self.optim.to_record().save(folder.join("optim")).unwrap();
        self.scaler.save(folder.join("scaler")).unwrap();
        self.window.save(folder.join("window")).unwrap();
        self.ema.save(folder.join("ema")).unwrap();
    }

    fn load(rule: bool, folder: &Path, done: usize) -> Self {
        let mut run = Self::new(rule);
        run.model = run.model.load_file(folder.join("model"));
        let optim = OptimizerRecord::load(folder.join("optim")).unwrap();
        run.optim = run.optim.load_record(optim);
        run.scaler.load(folder.join("scaler")).unwrap();
        run.window.load(folder.join("window")).unwrap();
        run.ema.load(folder.join("ema")).unwrap();
        run.done = done;
        run
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            parameters: pack(self.model.clone().into_record().into_bytes().unwrap()),
            optim: pack(self.optim.to_record().into_bytes().unwrap()),
            scaler: pack(self.scaler.into_bytes().unwrap()),
            window: pack(self.window.into_bytes().unwrap()),
            ema: pack(self.ema.into_bytes().unwrap()),
        }
    }
}

#[test]
fn a_run_goes_on_bit_for_bit_between_windows_and_inside_them() {
    for rule in RULES {
        let mut straight = Run::new(rule);
        straight.train_until(END);
        let counters = straight.scaler.counters();
        assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
        assert!(straight.ema.updates() >= 6, "{counters:?}");

        let mut open = 0;
        for stop in [0, 12, 13, 14, 26] {
            let folder = tempdir().unwrap();
            let mut first = Run::new(rule);
            first.train_until(stop);
            first.save(folder.path());
            open += u32::from(!first.window.is_empty());
            let mut second = Run::load(rule, folder.path(), stop);
            assert_eq!(second.snapshot(), first.snapshot());
            second.train_until(END);
            assert_eq!(second.snapshot(), straight.snapshot(), "{rule:?}, {stop}");
        }
        assert!(open >= 2, "no stop was inside a window");
    }
}

/// A window of two micro-batches out of three, and averages of two updates.
fn state(rule: bool) -> (AccumulationWindow, Ema, Pair) {
    let mut scaler = sgd().scaler().clone();
    let mut window = window(3, rule);
    let mut ema = EmaConfig::new().init().unwrap();
    let mut model = Pair::new(vec![1.0; 6], vec![2.0; 4], DType::F32);
    for value in [3.0, 4.0] {
        let grads = model.gradients([value; 6], [-value; 4], scaler.loss_scale());
        let full = scaler.accumulate(&mut window, grads, &model).unwrap();
        assert!(full.is_none());
        model = ema.update(Pair::new(vec![value; 6], vec![2.0; 4], DType::F32));
    }
    (window, ema, model)
}

fn window(size: u32, rule: bool) -> AccumulationWindow {
    let config = AccumulationConfig::new(size).with_skip_micro_batch(rule);
    config.init().unwrap()
}

#[test]
fn records_say_what_they_hold() {
    for rule in RULES {
        let (donor, ema, model) = state(rule);
        let record = AmpRecord::from_bytes(donor.into_bytes().unwrap()).unwrap();
        assert_eq!((record.window(), record.averages()), (2, 0));
        let mut loaded = window(4, rule);
        loaded.load_record(record).unwrap();
        assert_eq!((loaded.len(), loaded.gradients()), (2, 2));
        assert_eq!(
            values(loaded.sum(&model.bias).unwrap()),
            values(donor.sum(&model.bias).unwrap())
        );

        let record = AmpRecord::from_bytes(ema.into_bytes().unwrap()).unwrap();
        assert_eq!((record.window(), record.averages()), (0, 2));
        let mut loaded = EmaConfig::new().init().unwrap();
        loaded.load_record(record).unwrap();
        assert_eq!(loaded.module(&model).values(), ema.module(&model).values());
    }
}

/// The settings are the program's; empty states are states.
#[test]
fn an_empty_record_empties() {
    let rule = false;
    let (mut donor, mut ema, model) = state(rule);
    donor.load_record(window(9, rule).to_record()).unwrap();
    assert!(donor.is_empty() && donor.gradients() == 0);
    assert_eq!(donor.config().micro_batches, 3);

    ema.load_record(
        EmaConfig::new()
            .with_momentum(0.5)
            .init()
            .unwrap()
            .to_record(),
    )
    .unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (0, 0));
    assert_eq!(ema.config().momentum, 0.99);
    assert_eq!(ema.module(&model).values(), model.values());
}

#[test]
fn a_window_that_does_not_fit_is_refused_and_nothing_changes() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("window.bpk");
    for (rule, other) in [(RULES[0], RULES[1]), (RULES[1], RULES[0])] {
        state(rule).0.save(&path).unwrap();
        let cases = [
            (2, rule, "holds 2 micro-batches, but a window has 2 here"),
            (4, other, "with `skip_micro_batch`"),
        ];
        for (size, rule, part) in cases {
            let mut scaler = sgd().scaler().clone();
            let mut victim = window(size, rule);
            let model = Pair::zeros(DType::F32);
            let grads = model.gradients([5.0; 6], [5.0; 4], 1024.0);
            scaler.accumulate(&mut victim, grads, &model).unwrap();
            let before = pack(victim.into_bytes().unwrap());
            let error = victim.load(&path).unwrap_err();
            assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(part), "{text}");
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert_eq!(pack(victim.into_bytes().unwrap()), before);
        }
    }
}

/// A scaled optimizer's file holds both; files of the wrong kind are refused by name.
#[test]
fn each_file_is_read_as_what_it_holds() {
    let mut optim = sgd()
        .with_accumulation(3)
        .unwrap()
        .with_ema(EmaConfig::new())
        .unwrap();
    let mut model = Pair::zeros(DType::F32);
    for _ in 0..4 {
        let grads = model.gradients([2.0; 6], [2.0; 4], 1024.0);
        model = optim.step(0.1, model, grads);
    }
    let both = optim.into_bytes().unwrap();
    let mut loaded = window(3, false);
    loaded.from_bytes(both.clone()).unwrap();
    assert_eq!(
        values(loaded.sum(&model.bias).unwrap()),
        values(optim.window().unwrap().sum(&model.bias).unwrap())
    );
    let mut ema = EmaConfig::new().init().unwrap();
    ema.from_bytes(both).unwrap();
    assert_eq!((ema.updates(), ema.parameters()), (1, 2));

    let (donor, ema, _) = state(false);
    let of_window = || donor.into_bytes().unwrap();
    let of_ema = || ema.into_bytes().unwrap();
    let of_scaler = || optim.scaler().into_bytes().unwrap();
    let bare = || sgd().into_bytes().unwrap();
    let record = |bytes| AmpRecord::from_bytes(bytes).unwrap();
    let averages = |bytes| ema.clone().load_record(record(bytes));
    let window = |bytes| donor.clone().load_record(record(bytes));
    let scaler = |bytes| optim.scaler().clone().load_record(record(bytes));
    let optimizer = |bytes| sgd().load_record(record(bytes));
    let refused = [
        (
            averages(of_window()).err(),
            "that of an `AccumulationWindow`",
        ),
        (averages(of_scaler()).err(), "that of a `GradScaler`"),
        (averages(bare()).err(), "no averages"),
        (window(of_ema()).err(), "that of the hook `ema`"),
        (window(bare()).err(), "no accumulation window"),
        (scaler(of_ema()).err(), "that of the hook `ema`"),
        (scaler(of_window()).err(), "no state of a loss scaler"),
        (optimizer(of_ema()).err(), "no state of an optimizer"),
        (
            optimizer(of_window()).err(),
            "that of an `AccumulationWindow`",
        ),
        (optimizer(of_scaler()).err(), "that of a `GradScaler`"),
    ];
    for (error, part) in refused {
        let error = error.expect(part);
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error} lacks {part}");
    }
}

#[test]
fn damage_is_noticed_and_the_old_state_stays() {
    let (donor, ema, model) = state(false);
    let mut victims = (window(3, false), EmaConfig::new().init().unwrap());
    let grads = model.gradients([7.0; 6], [7.0; 4], 1024.0);
    let mut scaler = sgd().scaler().clone();
    scaler.accumulate(&mut victims.0, grads, &model).unwrap();
    victims.1.update(Pair::zeros(DType::F32));

    damages(&donor, &victims.0);
    damages(&ema, &victims.1);
}

fn damages<F: Files + Clone>(donor: &F, victim: &F) {
    let before = pack(victim.into_bytes().unwrap());
    damaged(&donor.into_bytes().unwrap(), &before, |bytes| {
        let mut victim = victim.clone();
        let result = victim.from_bytes(bytes);
        (result, pack(victim.into_bytes().unwrap()))
    });
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("none.bpk");
    let mut loaded = window(3, false);
    let errors = [
        loaded.load(&path).unwrap_err(),
        EmaConfig::new().init().unwrap().load(&path).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
        says(&error, [path.to_str().unwrap()]);
    }
    let (donor, ema, _) = state(false);
    let missing = folder.path().join("missing/window");
    assert!(matches!(
        donor.save(&missing),
        Err(AmpError::RecordIo { .. })
    ));
    assert!(matches!(ema.save(&missing), Err(AmpError::RecordIo { .. })));
}
