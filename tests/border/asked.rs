//! A rule of the program, and a logger, that ask the handle whenever they are called: nothing waits for what they hold up. Else this test hangs. A logger asks in
//! every program that `tests/oracle` draws, too.

use burn_amp::schedule::{Evidence, NextScale, Rule};
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use crate::support::{graph::*, *};

/// All that a handle says of itself.
fn ask(amp: &MixedPrecision) {
    let counts = (amp.counters(), amp.last_outcome(), amp.last_status());
    let text = format!("{amp:?}");
    drop((amp.loss_scale(), amp.regions(), counts, text));
}

/// Finite, an overflow, a loss that is NaN, no gradient that is not zero, and a region with other settings than those of a rule.
const LOSSES: [&str; 5] = [
    "[ T ] flat",
    "[ T ] steep",
    "[ T ] nan",
    "[ T ] zero",
    "[ {head:3 T } ] flat",
];

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
    let lines = logs("asked", || {
        let asked = Arc::new(OnceLock::new());
        let ruled = |scale: f64| {
            let config = at_scale(scale).with_raise_error_at_min_scale(true);
            let schedule = config.schedule().unwrap();
            schedule.with_rule(Asks(asked.clone())).unwrap()
        };
        let amp = MixedPrecision::f16().with_schedule(ruled(1024.0)).unwrap();
        assert!(asked.set(amp.clone()).is_ok());
        let of_logger = amp.clone();
        listen(move || ask(&of_logger));
        let mut run = Player::new(net(), &amp);
        // Some fail.
        let take = |run: &mut Training, line| _ = run.try_step(0.0, pass(run, line));
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
        for line in LOSSES {
            take(&mut run, line);
        }
        let record = run.optim.to_record();
        run.optim.load_record(record.clone()).unwrap();
        in_region(&mut run, 1.0);
        run.optim.load_record(record).unwrap();
        // Far above the last scale at which gradients were finite: an overflow asks how low the scale can go.
        run.optim.scaler_mut().set_loss_scale(65536.0).unwrap();
        take(&mut run, "[ T ] steep");
        let clone = run.clone();
        run.optim.scaler_mut().reset();
        in_region(&mut run, 1.0);
        drop(format!("{:?}", (clone.optim, run.optim)));
    });
    assert!(lines.len() > 100, "{}", lines.len());
}
