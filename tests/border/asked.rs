//! A logger, or a rule of the program, that asks the handle whenever it is called: nothing waits for what they hold up. Else these tests hang.

use burn_amp::schedule::{Evidence, NextScale, Rule};
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use crate::causes::EXECUTORS;
use crate::support::{graph::*, *};

/// All that a handle says of itself.
fn ask(amp: &MixedPrecision) {
    let counts = (amp.counters(), amp.last_outcome(), amp.last_status());
    let text = format!("{amp:?}");
    drop((amp.loss_scale(), amp.regions(), counts, text));
}

/// Runs a program whose logger asks its handle at each line, and returns how many lines that were.
fn lines_of(program: impl FnOnce(&MixedPrecision)) -> usize {
    let amp = handle();
    let lines = Arc::new(AtomicUsize::new(0));
    let (heard, asked) = (lines.clone(), amp.clone());
    listen(move || {
        heard.fetch_add(1, Ordering::Relaxed);
        ask(&asked);
    });
    program(&amp);
    lines.load(Ordering::Relaxed)
}

/// Steps, of which some fail.
fn steps<O: ModuleOptim>(run: &mut Training<O>, lines: &[&str]) {
    for line in lines {
        let _ = run.try_step(0.0, pass(run, line));
    }
}

fn sgd(amp: &MixedPrecision) -> Training {
    Player::new(net(), amp)
}

/// Finite, an overflow, a loss that is NaN, and no gradient that is not zero.
const LOSSES: [&str; 4] = ["[ T ] flat", "[ T ] steep", "[ T ] nan", "[ T ] zero"];

/// A region whose factor falls, or grows at the third step; and one of other settings, or none.
const FALLS: &str = "[ {head:2 T infinite } ] flat";
const GROWS: &str = "[ {head:2 T } ] flat";
const OTHERS: [&str; 2] = ["[ {head:3 T } ] flat", "[ T ] flat"];

#[test]
fn a_logger_may_ask_the_handle_at_each_line() {
    type Program = fn(&MixedPrecision);
    let programs: [(&str, Program); 5] = [
        ("a factor that falls", |amp| steps(&mut sgd(amp), &[FALLS])),
        ("one that grows", |amp| steps(&mut sgd(amp), &[GROWS; 3])),
        ("a region with other settings", |amp| {
            steps(&mut sgd(amp), &[GROWS, OTHERS[0]]);
        }),
        ("a region of a record", |amp| {
            let mut run = sgd(amp);
            steps(&mut run, &[GROWS; 3]);
            let record = run.optim.to_record();
            for line in OTHERS {
                run.optim.load_record(record.clone()).unwrap();
                steps(&mut run, &[line]);
            }
        }),
        ("steps until the run ends", |amp| {
            let mut run = sgd(amp);
            run.optim.scaler_mut().set_growth_interval(1).unwrap();
            steps(&mut run, &LOSSES.repeat(60));
        }),
    ];
    for (name, program) in programs {
        println!("{name}");
        assert!(lines_of(program) > 0, "{name} logs nothing");
    }
    for (name, run) in EXECUTORS {
        if name == "in one call" && !on_flex() {
            skipped("nobody else may read while a device records a step");
            continue;
        }
        println!("{name}");
        let each = |amp: &MixedPrecision| LOSSES.into_iter().for_each(|line| _ = run(amp, line));
        assert!(lines_of(each) > 0, "{name} logs nothing");
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

impl PartialEq for Asks {
    fn eq(&self, other: &Self) -> bool {
        self.ask();
        Arc::ptr_eq(&self.0, &other.0)
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
    let lines = lines_of(|_| {
        let asked = Arc::new(OnceLock::new());
        let ruled = |scale: f64| {
            let config = at_scale(scale).with_raise_error_at_min_scale(true);
            let schedule = config.schedule().unwrap();
            schedule.with_rule(Asks(asked.clone())).unwrap()
        };
        let amp = MixedPrecision::f16().with_schedule(ruled(1024.0)).unwrap();
        assert!(asked.set(amp.clone()).is_ok());
        let mut run = sgd(&amp);
        // The region's rule asks too.
        let in_region = |run: &mut Training, inside: f32| {
            let region = Rescale::dynamic("head").with_schedule(ruled(4.0)).unwrap();
            let forward = |x| rescaled(region, x, |x| run.model.trunk.forward(x) * inside);
            let output = run.amp.autocast(ones(), forward);
            let _ = run.try_step(0.0, run.gradients(output.sum() * 0.001));
        };
        for inside in [1.0, 6e4, 1.0] {
            in_region(&mut run, inside);
        }
        steps(&mut run, &LOSSES);
        let record = run.optim.to_record();
        run.optim.load_record(record.clone()).unwrap();
        in_region(&mut run, 1.0);
        run.optim.load_record(record).unwrap();
        // Far above the last scale at which gradients were finite: an overflow asks how low the scale can go.
        run.optim.scaler_mut().set_loss_scale(65536.0).unwrap();
        steps(&mut run, &["[ T ] steep"]);
        let clone = run.clone();
        run.optim.scaler_mut().reset();
        in_region(&mut run, 1.0);
        drop(format!("{:?}", (clone.optim, run.optim)));
    });
    assert!(lines > 100, "{lines}");
}
