//! A window and averages beside a `GradScaler`: stored in files of their own, resumed exactly, refused where they do not fit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use tempfile::tempdir;

use crate::support::{Files, Pack, Pair, Trial, all, filled, pack, sgd, values, wave};

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

    /// Parameters, optimizer, scaler, window, averages.
    fn stored(&self) -> [Bytes; 5] {
        [
            self.model.clone().into_record().into_bytes().unwrap(),
            self.optim.to_record().into_bytes().unwrap(),
            self.scaler.bits(),
            self.window.bits(),
            self.ema.bits(),
        ]
    }

    fn load(rule: bool, [model, optim, scaler, window, ema]: [Bytes; 5], done: usize) -> Self {
        let mut run = Self::new(rule);
        run.model = run
            .model
            .load_record(ModuleRecord::from_bytes(model).unwrap());
        run.optim = run
            .optim
            .load_record(OptimizerRecord::from_bytes(optim).unwrap());
        run.scaler.from_bytes(scaler).unwrap();
        run.window.from_bytes(window).unwrap();
        run.ema.from_bytes(ema).unwrap();
        run.done = done;
        run
    }

    fn snapshot(&self) -> [Pack; 5] {
        self.stored().map(pack)
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
            let mut first = Run::new(rule);
            first.train_until(stop);
            open += u32::from(!first.window.is_empty());
            let mut second = Run::load(rule, first.stored(), stop);
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
    let (mut window, mut ema) = (window(3, rule), averages());
    let mut model = Pair::new(vec![1.0; 6], vec![2.0; 4], DType::F32);
    for value in [3.0, 4.0] {
        let grads = model.gradients(([value; 6], [-value; 4]), scaler.loss_scale());
        let full = scaler.accumulate(&mut window, grads, &model).unwrap();
        assert!(full.is_none());
        model = ema.update(Pair::new(vec![value; 6], vec![2.0; 4], DType::F32));
    }
    (window, ema, model)
}

fn averages() -> Ema {
    EmaConfig::new().init().unwrap()
}

/// The sum of the bias's gradients.
fn sum(window: &AccumulationWindow, model: &Pair) -> Vec<f32> {
    values(window.sum(&model.bias).unwrap())
}

/// A window that holds one micro-batch of these gradients.
fn begun(size: u32, rule: bool, value: f32) -> AccumulationWindow {
    let (mut scaler, mut window) = (sgd().scaler().clone(), window(size, rule));
    let model = Pair::zeros(DType::F32);
    let grads = model.gradients(all(value), 1024.0);
    scaler.accumulate(&mut window, grads, &model).unwrap();
    window
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
        assert_eq!(sum(&loaded, &model), sum(&donor, &model));

        let record = AmpRecord::from_bytes(ema.into_bytes().unwrap()).unwrap();
        assert_eq!((record.window(), record.averages()), (0, 2));
        let mut loaded = averages();
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

    let other = EmaConfig::new().with_momentum(0.5).init().unwrap();
    ema.load_record(other.to_record()).unwrap();
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
            let mut victim = begun(size, rule, 5.0);
            let before = pack(victim.into_bytes().unwrap());
            let error = victim.load(&path).unwrap_err();
            assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
            says(&error, [part, path.to_str().unwrap()]);
            assert_eq!(pack(victim.into_bytes().unwrap()), before);
        }
    }
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
    let optim = sgd().with_accumulation(3).unwrap();
    let mut run = Trial::new(optim.with_ema(EmaConfig::new()).unwrap());
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

    let (donor, ema, _) = state(false);
    let record = |bytes: Result<Bytes, AmpError>| AmpRecord::from_bytes(bytes.unwrap()).unwrap();
    let (of_window, of_ema) = (donor.into_bytes(), ema.into_bytes());
    let [of_window, of_ema] = [of_window, of_ema].map(record);
    let (of_scaler, bare) = (
        record(optim.scaler().into_bytes()),
        record(sgd().into_bytes()),
    );
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
        (scaler(&of_ema), "that of the hook `ema`"),
        (scaler(&of_window), "no state of a loss scaler"),
        (optimizer(&of_ema), "no state of an optimizer"),
        (optimizer(&of_window), "that of an `AccumulationWindow`"),
        (optimizer(&of_scaler), "that of a `GradScaler`"),
    ] {
        let error = result.expect_err(part);
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        says(&error, [part]);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("none.bpk");
    let errors = [
        window(3, false).load(&path).unwrap_err(),
        averages().load(&path).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
        says(&error, [path.to_str().unwrap()]);
    }
    let missing = folder.path().join("missing/window");
    let (donor, ema, _) = state(false);
    for result in [donor.save(&missing), ema.save(&missing)] {
        assert!(matches!(result, Err(AmpError::RecordIo { .. })));
    }
}
