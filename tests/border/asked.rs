//! A logger, or a rule of the program, that asks the handle whenever it is called: nothing waits for what they hold up.

use burn_amp::schedule::{Evidence, NextScale, Rule};
use std::error::Error;
use std::sync::{OnceLock, mpsc};
use std::{fmt, thread};

use crate::support::*;

/// All that a handle says of itself.
fn ask(amp: &MixedPrecision) {
    let counts = (amp.counters(), amp.last_outcome(), amp.last_status());
    let text = format!("{amp:?}");
    drop((amp.loss_scale(), amp.regions(), counts, text));
}

/// Runs a program whose logger asks its handle at each line, and returns how many lines that were. It fails if the program hangs.
fn lines_of(name: &str, program: impl FnOnce(&MixedPrecision) + Send + 'static) -> usize {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let amp = f16(1024.0);
        let lines = Arc::new(AtomicUsize::new(0));
        let (heard, asked) = (lines.clone(), amp.clone());
        listen(move || {
            heard.fetch_add(1, Ordering::Relaxed);
            ask(&asked);
        });
        program(&amp);
        sender.send(lines.load(Ordering::Relaxed)).unwrap();
    });
    let lines = ended.recv_timeout(Duration::from_secs(60));
    lines.unwrap_or_else(|_| panic!("{name} hangs, or has failed"))
}

fn by(growth_interval: u32) -> Rescale {
    let config = at_scale(4.0).with_growth_interval(growth_interval);
    Rescale::dynamic("head").with_scaler(config).unwrap()
}

type Trained<O = ModuleOptimizer> = Player<Gain, O>;

fn player<O: ModuleOptim>(amp: &MixedPrecision, optim: O) -> Trained<O> {
    Player::with(optim, Gain::new(&[2.0, 2.0]), amp)
}

fn sgd(amp: &MixedPrecision) -> Trained {
    player(amp, SgdConfig::new().init())
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

/// A step in a region, whose output is multiplied by `inside` there and by `outside` behind.
fn step_in<O: ModuleOptim>(run: &mut Trained<O>, region: &Rescale, inside: f32, outside: f32) {
    let forward = |x| rescaled(region.clone(), x, |x| run.model.forward(x) * inside);
    let output = run.amp.autocast(ones(), forward);
    let _ = run.try_step(0.0, run.gradients(output.sum() * outside));
}

fn step<O: ModuleOptim>(run: &mut Trained<O>, factor: f32) {
    let output = run.amp.autocast(ones(), |x| run.model.forward(x));
    let _ = run.try_step(0.0, run.gradients(output.sum() * factor));
}

/// Finite, an overflow, a loss that is NaN, and no gradient that is not zero.
const LOSSES: [f32; 4] = [0.001, 1e9, f32::NAN, 0.0];

#[test]
fn a_logger_may_ask_the_handle_at_each_line() {
    type Program = fn(&MixedPrecision);
    let programs: [(&str, Program); 9] = [
        ("a factor that falls", |amp| {
            step_in(&mut sgd(amp), &by(2000), 6e4, 1.0);
        }),
        ("one that grows", |amp| {
            step_in(&mut sgd(amp), &by(1), 1.0, 0.001);
        }),
        ("a region with other settings", |amp| {
            let mut run = sgd(amp);
            step_in(&mut run, &by(1), 1.0, 0.001);
            step_in(&mut run, &by(2), 1.0, 0.001);
        }),
        ("a region of a record", |amp| {
            let mut run = sgd(amp);
            step_in(&mut run, &by(1), 1.0, 0.001);
            let record = run.optim.to_record();
            for region in [Some(by(3)), None] {
                run.optim.load_record(record.clone()).unwrap();
                match region {
                    Some(region) => step_in(&mut run, &region, 1.0, 0.001),
                    None => step(&mut run, 0.001),
                }
            }
        }),
        ("steps", |amp| {
            let mut run = sgd(amp);
            run.optim.scaler_mut().set_growth_interval(1).unwrap();
            LOSSES
                .repeat(60)
                .into_iter()
                .for_each(|factor| step(&mut run, factor));
        }),
        ("steps in flight", |amp| {
            let mut run = player(amp, adam());
            LOSSES.into_iter().for_each(|factor| step(&mut run, factor));
            let _ = run.optim.synchronize();
        }),
        ("windows", |amp| {
            let mut run = sgd(amp);
            run.optim = run
                .optim
                .with_accumulation(AccumulationConfig::new(2).with_skip_micro_batch(true));
            LOSSES
                .repeat(4)
                .into_iter()
                .for_each(|factor| step(&mut run, factor));
        }),
        ("a pipeline", |amp| {
            let optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
            let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
            let mut model = amp.attach(Gain::new(&[2.0, 2.0]));
            for factor in LOSSES {
                let output = amp.autocast(ones(), |x| model.forward(x));
                let grads = backward(output.sum() * factor, &model);
                model = optim.step(0.0, model, grads);
            }
            optim.synchronize(model).unwrap();
        }),
        ("a scaler by hand", |amp| {
            let (model, mut optim) = (amp.attach(Gain::new(&[2.0, 2.0])), SgdConfig::new().init());
            let mut scaler = GradScaler::from(amp);
            for factor in LOSSES {
                let output = amp.autocast(ones(), |x| model.forward(x));
                let grads = scaler.backward(output.sum() * factor, &model);
                let grads = scaler.unscale(grads, &model).unwrap();
                scaler.step(&mut optim, 0.0, model.clone(), grads);
                scaler.update().unwrap();
            }
        }),
    ];
    for (name, program) in programs {
        assert!(lines_of(name, program) > 0, "{name} logs nothing");
    }
}

/// A rule that logs, and asks, whatever it is called for.
struct Asks(Arc<OnceLock<MixedPrecision>>);

impl Asks {
    fn ask(&self) {
        log::info!(target: "burn_amp_asks", "asked");
        self.0.get().into_iter().for_each(ask);
    }
}

impl Clone for Asks {
    fn clone(&self) -> Self {
        self.ask();
        Self(self.0.clone())
    }
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ask();
        f.write_str("Asks")
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.ask();
    }
}

impl Rule for Asks {
    fn name(&self) -> &str {
        self.ask();
        "asks"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        self.ask();
        match evidence {
            Evidence::Overflow => NextScale::Lower,
            // It is not applied, which the log says.
            Evidence::Finite(_) => NextScale::Exactly(f32::INFINITY),
        }
    }

    fn count_from(&self) -> Option<f32> {
        self.ask();
        None
    }

    fn state(&self) -> String {
        self.ask();
        "1".to_string()
    }

    fn load_state(&mut self, _state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.ask();
        Ok(())
    }
}

#[test]
fn a_rule_may_ask_the_handle_whatever_it_is_called_for() {
    let lines = lines_of("a rule of the scale and of a region", |_| {
        let asked = Arc::new(OnceLock::new());
        let ruled = |scale: f64| {
            let schedule = at_scale(scale)
                .with_raise_error_at_min_scale(true)
                .schedule();
            schedule.unwrap().with_rule(Asks(asked.clone())).unwrap()
        };
        let amp = MixedPrecision::f16().with_schedule(ruled(1024.0)).unwrap();
        assert!(asked.set(amp.clone()).is_ok());
        let region = || Rescale::dynamic("head").with_schedule(ruled(4.0)).unwrap();
        let mut run = sgd(&amp);
        for inside in [1.0, 6e4, 1.0] {
            step_in(&mut run, &region(), inside, 0.001);
        }
        LOSSES.into_iter().for_each(|factor| step(&mut run, factor));
        let record = run.optim.to_record();
        run.optim.load_record(record.clone()).unwrap();
        step_in(&mut run, &region(), 1.0, 0.001);
        run.optim.load_record(record).unwrap();
        run.optim.scaler_mut().set_loss_scale(64.0).unwrap();
        let clone = run.clone();
        run.optim.scaler_mut().reset();
        step_in(&mut run, &region(), 1.0, 0.001);
        drop(format!("{:?}", (clone.optim, run.optim)));
    });
    assert!(lines > 100, "{lines}");
}
