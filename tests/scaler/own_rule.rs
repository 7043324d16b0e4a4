//! Rules that no one but this file knows move the loss scale: in training, through records, in regions, and as the built-in ones do.

use burn_amp::schedule::{NextScale, Rule};
use serde_json::from_str;
use std::error::Error;

use burn_amp_tests::{prelude::*, trial::*};

/// Its state is text, of which it takes only what begins as it wants. One whose text is a list of scales and a count halves the scale every
/// third iteration and grows in others: it remembers every scale that it was shown, and the last count of values from 256 on.
#[derive(Clone, Debug, PartialEq)]
struct Own {
    name: &'static str,
    wanted: &'static str,
    state: String,
    /// What it asks for where it does not read its state.
    next: NextScale,
}

/// One of that name, which takes what begins so and starts there.
fn own(name: &'static str, state: &'static str) -> Own {
    let wanted = &state[..state.len().min(2)];
    Own {
        name,
        wanted,
        state: state.to_string(),
        next: NextScale::Counted,
    }
}

fn saw() -> Own {
    own("saw", "[[],0]")
}

impl Rule for Own {
    fn name(&self) -> &str {
        self.name
    }

    fn advance(&mut self, scale: f32, evidence: Evidence) -> NextScale {
        let Ok((mut scales, mut above)) = from_str::<(Vec<f32>, u64)>(&self.state) else {
            return self.next;
        };
        scales.push(scale);
        if let Evidence::Finite(Some(measures)) = evidence {
            above = measures.above;
        }
        self.state = json!([scales, above]).to_string();
        match scales.len() % 3 {
            0 => NextScale::Lower,
            _ => NextScale::UpTo(f32::INFINITY),
        }
    }

    fn count_from(&self) -> Option<f32> {
        (self.name == "saw").then_some(256.0)
    }

    fn state(&self) -> String {
        self.state.clone()
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.state = state.to_string();
        match state.starts_with(self.wanted) {
            true => Ok(()),
            false => Err(format!("{state} is no state of mine").into()),
        }
    }
}

fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_growth_interval(5)
}

fn ruled_by(config: GradScalerConfig, rule: Own) -> LossScale {
    config.schedule().unwrap().with_rule(rule).unwrap()
}

fn ruled(rule: Own) -> LossScale {
    ruled_by(config(), rule)
}

fn built_in(schedule: Schedule) -> LossScale {
    config().with_schedule(schedule).schedule().unwrap()
}

/// With a state, which a record that is refused must not replace.
fn trained(schedule: LossScale, steps: usize) -> Run<ModuleOptimizer> {
    let mut run = Run::at_border(AdamConfig::new().init(), schedule);
    run.train_until(steps);
    run
}

/// The host decides each step, also of an optimizer that would step on the device. A reset starts the rule as it was given.
#[test]
fn it_is_shown_every_iteration_and_the_scale_that_was_used() {
    let schedule = ruled_by(config().with_warmup_steps(8), saw());
    let mut run = Run::at_border(FusedSgd::new(SgdConfig::new()), schedule.clone());
    let mut used = Vec::new();
    for step in 1..12 {
        let before = run.optim.scaler().loss_scale();
        run.train_until(step);
        let skipped = run.optim.scaler().last_outcome().unwrap().is_skipped();
        // That of step 4 is infinite, which says nothing of the scale.
        assert_eq!(skipped, step == 5);
        if !skipped {
            used.push(before);
            let status = run.optim.scaler().last_status().unwrap();
            let state = remembered(&run.optim.scaler().schedule());
            let expected = json!([used, status.above()]).to_string();
            assert_eq!(state["saw"], expected, "{step}");
        }
    }
    assert!(used.windows(2).any(|pair| pair[1] == pair[0] / 2.0));
    run.optim.scaler_mut().reset();
    assert_eq!(run.optim.scaler().schedule(), schedule);
}

/// What a rule refuses leaves scaler, optimizer and model as they were.
#[test]
fn a_damaged_state_is_refused() {
    let of = |state| ruled(own("mine", state));
    let damaged = trained(of("[7]"), 9).optim.to_record();
    let message = "rule `mine`: [7] is no state of mine";
    for record in [damaged.clone(), damaged.with_settings()] {
        let mut run = trained(of("{"), 12);
        let before = run.snapshot();
        let stepped = record.counters().unwrap().stepped();
        assert!(stepped > 0 && before.counters.stepped() > stepped);
        let mut scaler = GradScaler::from_schedule(of("{")).unwrap();
        scaler.set_loss_scale(256.0).unwrap();
        let alone = scaler.bits();
        let refused = run.optim.load_record(record.clone());
        for refused in [refused, scaler.load_record(record)] {
            is_error(&refused.unwrap_err(), "DamagedRecord", [message]);
        }
        assert_eq!((run.snapshot(), scaler.bits()), (before, alone));
    }
}

/// The scale and the counts are taken over; the rule starts fresh, whatever it has seen before.
#[test]
fn the_record_of_another_rule_gives_its_scale_with_one_warning() {
    let plain = built_in(Schedule::GrowthInterval);
    let [log_max, near_top] = [Schedule::log_max(), Schedule::near_top()].map(built_in);
    let (saw, mine) = (ruled(saw()), ruled(own("mine", "{}")));
    let of_log_max = [&plain, &near_top, &saw].map(|here| (&log_max, here));
    let of_saw = [&log_max, &plain, &mine].map(|here| (&saw, here));
    let both = of_log_max.into_iter().chain(of_saw);
    for (theirs, here) in both.chain([(&plain, &saw)]) {
        let (stored, mut run) = (trained(theirs.clone(), 3), trained(here.clone(), 4));
        let (stored, scaler) = (stored.optim.scaler(), run.optim.scaler_mut());
        let names = ["`schedule` is", theirs.rule_name(), here.rule_name()];
        warns_once(names, || scaler.load_record(stored.to_record()).unwrap());
        assert_eq!(scaler.loss_scale(), stored.loss_scale());
        assert_eq!(scaler.growth_tracker(), stored.growth_tracker());
        assert_eq!(remembered(&scaler.schedule()), remembered(here));
    }
}

fn remembered(schedule: &LossScale) -> Value {
    serde_json::to_value(schedule).unwrap()["state"].clone()
}

/// A rule is the program's code: settings of a record do not replace it, and cannot bring it.
#[test]
fn the_settings_of_a_record_come_without_its_rule() {
    let saw = || GradScaler::from_schedule(ruled(saw())).unwrap();
    let log_max = GradScaler::from_schedule(built_in(Schedule::log_max())).unwrap();
    for (theirs, mut here, rule, warning) in [
        (saw(), default_scaler(), "GrowthInterval", "the rule `saw`"),
        (log_max, saw(), "saw", ""),
    ] {
        let record = theirs.to_record().with_settings();
        warns_once([warning], || here.load_record(record).unwrap());
        assert_eq!(here.config(), theirs.config());
        assert_eq!(here.schedule().rule_name(), rule);
    }
}

/// A loss scale that was stored alone waits for its rule.
#[test]
fn a_stored_loss_scale_goes_on_once_it_has_its_rule() {
    let ones = GradientStatus::default().with_max_abs(1.0);
    let next = |scale: LossScale| scale.adjust(evidence(false, Some(&ones)));
    let scale = (0..4).fold(ruled(saw()), |scale, _| next(scale));
    let text = serde_json::to_string(&scale).unwrap();
    let read: LossScale = from_str(&text).unwrap();
    assert_eq!(read, scale);
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    let result = MixedPrecision::f16().with_schedule(read.clone());
    says(&result.unwrap_err(), ["the rule `saw`"]);
    GradScaler::from_schedule(read.clone()).unwrap_err();
    let again = read.clone().with_rule(saw()).unwrap();
    assert_eq!(next(again), next(scale.clone()));
    assert_eq!(next(scale.clone()).scale(), 2.0 * scale.scale());

    // Under another rule it begins as that is given, and one that refuses the state is refused.
    let other = read.clone().with_rule(own("mine", "{}")).unwrap();
    assert_eq!(remembered(&other)["mine"], "{}");
    assert_eq!(other.scale(), scale.scale());
    let error = read.with_rule(own("saw", "{")).unwrap_err();
    says(&error, ["no state of mine"]);
}

/// Text of every kind comes back as it is.
#[test]
fn any_text_is_stored() {
    for state in ["", "no JSON", "\"text\"", "[1.5,null]", "null", "12", "NaN"] {
        let scaler = GradScaler::from_schedule(ruled(own("mine", state))).unwrap();
        let mut loaded = scaler.clone();
        loaded.set_loss_scale(2.0).unwrap();
        loaded.from_bytes(scaler.bits()).unwrap();
        assert_eq!(loaded.schedule(), scaler.schedule(), "{state}");
    }
}

#[test]
fn a_name_must_be_its_own() {
    let names = "GrowthInterval AdaptiveInterval LogMax NearTop";
    for name in names.split(' ').chain([""]) {
        let result = built_in(Schedule::GrowthInterval).with_rule(own(name, ""));
        says(&result.unwrap_err(), ["a name of its own"]);
    }
}

#[test]
fn a_scale_that_cannot_be_applied_is_warned_of() {
    use NextScale::{Exactly, UpTo};
    for (next, asked) in [
        (UpTo(f32::NAN), "NaN"),
        (UpTo(-1.0), "0e0"),
        (Exactly(f32::NAN), "NaN"),
        (Exactly(f32::INFINITY), "inf"),
    ] {
        let mut rule = own("asks", "null");
        rule.next = next;
        let scaler = GradScaler::from_schedule(ruled(rule)).unwrap();
        let sgd = SgdConfig::new().init();
        let mut run = Trial::new(ScaledOptimizer::new(sgd, scaler));
        let said = format!("the rule `asks` asks for the scale {asked}, which cannot be applied");
        warns_once([said.as_str()], || run.step(ONES));
        assert_eq!(run.scale(), 65536.0, "{next:?}");
    }
}

/// The factor of the region in which a step has gradients of 2^-20.
fn step_in(region: &Rescale, run: &mut Trial) -> f32 {
    let amp = run.optim.scaler().precision().unwrap().clone();
    let inside = |()| rescaled(region.clone(), (), |()| run.model.bias.val());
    let grads = (amp.autocast((), inside).sum() * 2f64.powi(-20)).backward();
    run.take(GradientsParams::from_grads(grads, &run.model));
    amp.regions()[0].1
}

#[test]
fn a_region_moves_by_it_too() {
    let region = |rule| {
        let config = config().with_init_scale(1.0).with_max_scale(Some(1024.0));
        Rescale::dynamic("region").with_schedule(ruled_by(config, rule))
    };
    let new = || Trial::at_border(&f16_under(config().with_init_scale(16.0)));
    says(&region(saw()).unwrap_err(), ["`saw`"]);
    let ruled = region(own("own", "[[],0]")).unwrap();
    let [mut one, mut other] = [new(), new()];
    let factors = [(); 6].map(|()| step_in(&ruled, &mut one));
    assert_eq!(factors, [2.0, 4.0, 2.0, 4.0, 8.0, 4.0]);

    // Through a record, into a program that has not opened it yet.
    let bytes = one.optim.into_bytes().unwrap();
    other.optim.from_bytes(bytes.clone()).unwrap();
    let both = [&mut one, &mut other].map(|run| {
        let factors = [(); 6].map(|()| step_in(&ruled, run));
        (factors, run.optim.into_bytes())
    });
    assert_eq!(both[0], both[1]);

    // Where a rule of this name takes no state but its own: an error if it is open, and else a fresh start.
    let refusing = region(own("own", "{")).unwrap();
    let [mut open, mut fresh] = [new(), new()];
    step_in(&refusing, &mut open);
    let error = refused(&mut open.optim, |optim| optim.from_bytes(bytes.clone()));
    says(&error, ["region `region`"]);
    fresh.optim.from_bytes(bytes).unwrap();
    warns_once(["starts fresh"], || {
        assert_eq!(step_in(&refusing, &mut fresh), 1.0);
    });
}

/// Also after a reset: the interval that follows the run is that of the rule in the settings.
#[test]
fn the_rule_that_it_replaces_moves_nothing() {
    let config = config().with_schedule(Schedule::adaptive_interval());
    let mut scaler = GradScaler::from_schedule(ruled_by(config, own("own", "{"))).unwrap();
    for _ in 0..2 {
        let next = scaler.schedule().adjust(Evidence::Overflow);
        assert_eq!(next.growth_interval(), 5);
        scaler.reset();
    }
}
