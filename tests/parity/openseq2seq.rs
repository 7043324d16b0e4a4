//! OpenSeq2Seq's automatic loss scalers: its own, and ours with the bugs fixed.

use serde::Deserialize;

use super::*;

const BOUNDS: &str = "min_scale=scale_min max_scale=scale_max";

#[derive(Deserialize)]
struct LogMax {
    id: String,
    params: Value,
    init_scale: f64,
    rel_dev_own_f32_port: f64,
    amax: Vec<Value>,
    nonfinite: Vec<u8>,
    scale: Vec<Value>,
}

impl LogMax {
    fn start(&self, schedule: Schedule) -> GradScalerConfig {
        let config = settings(&self.params, BOUNDS).with_schedule(schedule);
        config.with_init_scale(self.init_scale.max(config.min_scale.unwrap()))
    }

    /// A schedule with parameters of the trace.
    fn with_own(&self, kind: &str, fields: &[&str]) -> LossScale {
        let own = fields.iter().map(|field| (*field, &self.params[field]));
        let own: BTreeMap<_, _> = own.collect();
        let schedule = serde_json::to_value(BTreeMap::from([(kind, own)])).unwrap();
        let config = self.start(serde_json::from_value(schedule).unwrap());
        config.schedule().unwrap()
    }

    fn original(&self) -> LossScale {
        let fields = ["beta1", "beta2", "overflow_std_dev", "log_max"];
        self.with_own("OpenSeq2SeqLogMax", &fields)
    }

    /// The scale after each step.
    fn run(&self, mut scale: LossScale) -> Vec<f32> {
        let steps = self.amax.iter().zip(&self.nonfinite);
        let mut scales = Vec::new();
        for (amax, nonfinite) in steps {
            let amax = number(amax);
            let outcome = outcome(*nonfinite == 1 || amax.is_infinite());
            let status = GradientStatus::default().with_max_abs(amax);
            scale = scale.adjust((outcome, &status));
            scales.push(scale.scale());
        }
        scales
    }
}

#[test]
fn parity_openseq2seq_logmax() {
    for (name, trace) in &traces::<LogMax>("openseq2seq_logmax") {
        let tolerance = (1.2 * trace.rel_dev_own_f32_port).max(2e-6);
        let scales = trace.run(trace.original());
        assert_eq!(scales.len(), trace.scale.len());
        for (step, (scale, expected)) in scales.iter().zip(&trace.scale).enumerate() {
            let (scale, expected) = (f64::from(*scale), number(expected));
            let at = format!("{name}, {}, step {step}: {scale}, {expected}", trace.id);
            assert_eq!(scale.is_nan(), expected.is_nan(), "{at}");
            let is_near = (scale - expected).abs() <= tolerance * expected;
            assert!(scale.is_nan() || is_near, "{at}");
        }
    }
}

fn trace(id: &str) -> LogMax {
    let mut traces = traces::<LogMax>("openseq2seq_logmax").into_iter();
    traces.find(|(_, trace)| trace.id == id).unwrap().1
}

/// One overflow pins the original to its lowest scale for the rest of the run. Ours goes down by one power of two, and up again
/// after a growth interval.
#[test]
fn log_max_recovers_from_an_overflow_where_the_original_stays_down() {
    let trace = trace("lm-12");
    let at = trace.nonfinite.iter().position(|flag| *flag == 1).unwrap();
    let original = trace.run(trace.original());
    assert!(original[at - 1] > 100.0);
    assert!(original[at..].iter().all(|scale| *scale == 1.0));

    let ours = |interval, trace: &LogMax| {
        let config = trace.start(Schedule::log_max());
        trace.run(config.with_growth_interval(interval).schedule().unwrap())
    };
    let scales = ours(20, &trace);
    assert_eq!(scales[at], scales[at - 1] / 2.0);
    let mut clean = trace;
    clean.nonfinite[at] = 0;
    clean.amax[at] = clean.amax[at - 1].clone();
    let undisturbed = ours(20, &clean);
    assert_eq!(scales[at + 60..], undisturbed[at + 60..]);
    assert!(undisturbed[at + 60..].iter().all(|scale| *scale > 100.0));
}

/// A gradient that is all zero, of a batch whose targets are masked, makes the original NaN for good. Ours ignores it.
#[test]
fn log_max_ignores_a_zero_gradient_where_the_original_is_lost() {
    let trace = trace("lm-13");
    let mut amax = trace.amax.iter();
    let at = amax.position(|amax| number(amax) == 0.0).unwrap();
    let original = trace.run(trace.original());
    assert!(original[at..].iter().all(|scale| scale.is_nan()));

    let start = trace.start(Schedule::log_max()).schedule().unwrap();
    let ours = trace.run(start.clone());
    let mut without = trace;
    without.amax.remove(at);
    without.nonfinite.remove(at);
    assert_eq!(ours[at], ours[at - 1]);
    assert_eq!(ours[at + 1..], without.run(start)[at..]);
    assert!(ours[at..].iter().all(|scale| *scale > 100.0));
}

/// Ours is the power of two at or below the original's scale, give or take one, where the original has no bug.
#[test]
fn log_max_follows_the_original_in_powers_of_two() {
    for (name, trace) in &traces::<LogMax>("openseq2seq_logmax") {
        let is_clean = |step: usize| trace.nonfinite[step] == 0 && number(&trace.amax[step]) > 0.0;
        let clean = (0..trace.amax.len()).all(is_clean);
        if !clean || trace.amax.iter().any(|amax| number(amax).is_infinite()) {
            continue;
        }
        let start = trace.with_own("LogMax", &["beta1", "beta2", "overflow_std_dev"]);
        let bounds = [start.config().min_scale, start.config().max_scale];
        let (mut before, ours) = (start.scale(), trace.run(start));
        for (step, (ours, expected)) in ours.iter().zip(&trace.scale).enumerate() {
            let ratio = f64::from(*ours) / number(expected);
            let at = format!("{name}, {}, step {step}: {ours}, {expected}", trace.id);
            // It rises by no more than a factor of two a step.
            let is_rising = *ours == 2.0 * before;
            before = *ours;
            assert!(ratio <= 1.01 && (ratio >= 0.49 || is_rising), "{at}");
            let is_power = ours.to_bits() << 9 == 0;
            assert!(is_power || bounds.contains(&Some((*ours).into())), "{at}");
        }
    }
}

/// It is the default schedule between two bounds. Where the original increments its counter first, the first growth comes one
/// step earlier.
#[test]
fn parity_openseq2seq_backoff() {
    for (name, trace) in &traces::<Value>("openseq2seq_backoff") {
        let names = "growth_factor=step_factor growth_interval=step_window";
        let config = settings(&trace["params"], &format!("{names} {BOUNDS}"));
        let config = config.with_init_scale(trace["init_scale"].as_f64().unwrap());
        // Of f32, as there.
        let factor = f64::from(config.growth_factor as f32);
        let config = config.with_growth_factor(factor);
        let config = config.with_backoff_factor(1.0 / factor);
        for (tracker, order) in [(0, "scale_read_first"), (1, "scale_increment_first")] {
            let mut scale = with(config.schedule().unwrap(), "/growth_tracker", tracker);
            for (step, expected) in trace[order].as_array().unwrap().iter().enumerate() {
                let overflow = trace["nonfinite"][step] == 1 || trace["amax_is_inf"][step] == 1;
                scale = scale.adjust(outcome(overflow));
                let at = format!("{name}, {}, {order}, step {step}", trace["id"]);
                assert_eq!(f64::from(scale.scale()), *expected, "{at}");
            }
        }
    }
}
