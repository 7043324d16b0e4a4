//! What iterations come to: steps of one optimizer or two, gradients that are observed, dropped, held or discarded, and `update`, as short programs.

use burn_amp_tests::{prelude::*, trial::*};

/// Two optimizers, whose parameters have the same ids, as those of a target network and the one that it follows.
struct Play {
    run: ByHand,
    other: (ModuleOptimizer, Pair),
    window: AccumulationWindow,
    held: Option<UnscaledGradients>,
    /// What went on with a copy.
    left: Option<GradScaler>,
    /// Log lines of this level are shown.
    level: Level,
}

fn config(settings: &str) -> GradScalerConfig {
    GradScalerConfig::load_binary(settings.as_bytes()).unwrap()
}

impl Play {
    fn new(settings: &str) -> Self {
        let run = ByHand::new(config(settings));
        Self {
            other: (AdamConfig::new().init(), run.model.clone()),
            run,
            window: windows(2, true).init().unwrap(),
            held: None,
            left: None,
            level: Level::Warn,
        }
    }

    /// One call: `a` and `b` step, `o` observes, `d` drops, `h` holds, `t` throws away with `discard`, `m` is a micro-batch, each of gradients that
    /// are ones (`.`), overflow (`x`), are a sum of both (`+`), zero (`z`), tiny (`e`), or another module's alone (`0`); `k` drops what was held; `u` is
    /// `update`, with a scale after `=`, `s=` sets it, `c` goes on with a copy of the scaler, `l` with one that has loaded its record, which may have other
    /// settings; `w` does so with those of the record. `r` resets it. From `!` on log lines are those that inform, and not those that warn.
    fn call(&mut self, call: &str) -> Result<(), AmpError> {
        let (what, argument) = call.split_at(1);
        let scale = || argument[1..].parse().unwrap();
        let scaler = &mut self.run.scaler;
        let own = scaler.config();
        match what {
            "u" if argument.is_empty() => return scaler.update().map(drop),
            "u" => return scaler.update_to(scale()).map(drop),
            "s" => return scaler.set_loss_scale(scale()),
            "c" => self.left = Some(std::mem::replace(scaler, scaler.clone())),
            "l" | "w" => {
                let mut wanted = match argument {
                    "" => own,
                    settings => config(settings),
                };
                let mut record = AmpRecord::from_bytes(scaler.bits())?;
                *scaler = GradScaler::new(wanted)?;
                if what == "w" {
                    record = record.with_settings();
                    wanted = own.with_enabled(wanted.enabled);
                }
                scaler.load_record(record)?;
                assert_eq!(scaler.config(), wanted);
            }
            "r" => {
                scaler.reset();
                assert_eq!(scaler.schedule(), own.schedule()?);
                assert_eq!(scaler.counters(), StepCounters::default());
                assert_eq!(scaler.last_status(), None);
            }
            "k" => self.held = None,
            "!" => self.level = Level::Info,
            _ => return self.give(what, argument),
        }
        Ok(())
    }

    fn give(&mut self, what: &str, kind: &str) -> Result<(), AmpError> {
        let (before, models) = (self.run.scale(), self.values());
        let (run, (optim, model)) = (&mut self.run, &mut self.other);
        let grads = match kind {
            "0" => {
                let other = [LinearConfig::new(2, 2).init(&flex())];
                run.unscale(gradients(&other, 0, f32::INFINITY, FloatDType::F32))
            }
            "+" => run.unscaled(ONES) + run.unscaled(BAD),
            // Of either sign.
            "z" => run.unscaled(from_fn(|index| [0.0, -0.0][index % 2])),
            "e" => run.unscaled([1e-6; 10]),
            kind => run.unscaled(values_that(kind == "x")),
        };
        let status = grads.status();
        // Ones are exact at every scale.
        assert!(kind != "." || status.max_abs() == 1.0, "{status:?}");
        assert!(kind != "0" || *status == GradientStatus::default());
        // Whoever has a copy counts nothing again.
        let _copy = grads.clone();
        let result = match what {
            "a" => run.take(grads),
            "b" => {
                let stepped = run.scaler.try_step(optim, 1.0, model.clone(), grads);
                let stepped = stepped.map_err(AmpError::from);
                stepped.map(|stepped| *model = stepped)
            }
            "o" => run.scaler.observe(&grads).map(drop),
            "t" => run.scaler.discard(grads),
            "m" => {
                let full = run.scaler.accumulate(&mut self.window, grads, &run.model);
                full.map(drop)
            }
            "h" | "d" => {
                self.held = (what == "h").then_some(grads);
                Ok(())
            }
            other => panic!("unknown call {other}"),
        };
        // Each skips by its own gradients, and the scale moves in `update` only, or with a micro-batch that is left out.
        let steps = result.is_ok() && ["a.", "b."].contains(&&*[what, kind].concat());
        assert!(kind == "e" || (self.values() != models) == steps);
        assert!(what == "m" || self.run.scale() == before);
        result
    }

    fn values(&self) -> [Vec<f64>; 2] {
        [&self.run.model, &self.other.1].map(Pair::values)
    }

    /// The loss scale and the growth tracker; steps, skips, skips in a row, discarded gradients; and what the last call has done.
    fn shown(&self) -> String {
        let (scaler, found) = (&self.run.scaler, self.run.counters());
        let (steps, skipped) = (found.steps(), found.skipped());
        assert_eq!(found.skip_rate(), skipped as f64 / steps.max(1) as f64);
        let counts = [steps, skipped, found.consecutive_skips(), found.discarded()];
        let counts = format!("{counts:?}").replace(',', "");
        let outcome = scaler.last_outcome().map(|outcome| format!("{outcome:?}"));
        let outcome = outcome.unwrap_or("-".to_string());
        let (scale, tracker) = (short(scaler.loss_scale()), scaler.growth_tracker());
        format!("{scale}:{tracker} {counts} {outcome}")
    }
}

/// Settings, calls, and what is shown at each `?`, of each error and of each warning. A call may be repeated, and `.`, `x`, `z` and `e` are
/// an iteration of `a`.
fn play(settings: &str, calls: &str) -> String {
    let (mut play, mut shown) = (Play::new(settings), Vec::new());
    for word in calls.split(' ') {
        let (call, times) = word.split_once('*').unwrap_or((word, "1"));
        for _ in 0..times.parse().unwrap() {
            if call == "?" {
                shown.push(play.shown());
                continue;
            }
            let (mut result, level) = (Ok(()), play.level);
            let mut logged = captured(level, || {
                result = match call {
                    "." | "x" | "z" | "e" => {
                        let stepped = play.call(&["a", call].concat());
                        stepped.and_then(|()| play.call("u"))
                    }
                    call => play.call(call),
                }
            });
            // The log counts overflows in a row, too.
            logged.retain(|message| !message.contains("overflows in a row"));
            shown.extend(logged.iter().map(|message| match level {
                Level::Warn => format!("warns of {}", of_what(message)),
                _ => format!("says {message:?}"),
            }));
            shown.extend(result.err().map(|error| brief(&error)));
        }
    }
    // A copy goes its own way.
    let left = play.left.map(|left| short(left.loss_scale()));
    shown.extend(left.map(|scale| format!("left at {scale}")));
    shown.join(", ")
}

/// What a warning is of, and the parts of its message.
const WARNINGS: &str = "
other settings > with other settings .. those of the program are used
underflow > underflow .. at loss scale
a missing update > `GradScaler::update`
no gradients > no gradient .. frozen .. adapters .. copy of the model
";

/// What a warning is of.
fn of_what(message: &str) -> &str {
    let is_it = |[_, parts]: &[&str; 2]| parts.split(" .. ").all(|part| message.contains(part));
    let kind = rows(WARNINGS).find(is_it);
    kind.map_or(message, |[kind, _]| kind)
}

/// As a power of two, where it is small or large.
fn short(scale: f32) -> String {
    match scale {
        1.0..1e6 => scale.to_string(),
        _ => format!("2^{}", scale.log2()),
    }
}

fn brief(error: &AmpError) -> String {
    match error {
        AmpError::UpdateMissing { parameter } => {
            let called = format!("`step` has already been called for parameter `{parameter}`");
            says(error, [&*called, "update"]);
            format!("twice {parameter}")
        }
        AmpError::LossScaleExhausted { scale, skips, .. } => {
            let after = format!("after {skips} skipped steps in a row; ");
            let first = "the first parameter whose gradient overflows is `bias`";
            says(error, [[&after, first].concat().as_str()]);
            format!("ends at {} after {skips}", short(*scale))
        }
        other => {
            is_error(other, "InvalidValue", []);
            "refused".to_string()
        }
    }
}

/// What each row says, the settings, the calls, and what is shown. A long row goes on in a second line.
const PLAYS: &str = r#"
nothing counts without gradients > {"growth_interval": 2} > ? u ? > 65536:0 [0 0 0 0] -, 65536:0 [0 0 0 0] -
no gradients are a step, no evidence, and break no row of overflows > {"growth_interval": 2} > . a0 a0 ? u ? x a0 u ?
    warns of no gradients, 65536:1 [3 0 0 0] NoGradients, 65536:1 [3 0 0 0] NoGradients, 32768:0 [5 1 1 0] NoGradients
several overflows of an iteration back off once, whoever overflows > {"growth_interval": 2} > b. ax u bx a. ? u ax bx u ?
    32768:0 [4 2 2 0] Stepped, 8192:0 [6 4 3 0] Skipped
several finite steps count once towards growth > {"growth_interval": 2} > b. a. u b. a. u b. a. u ? > 131072:1 [6 0 0 0] Stepped
whether all of them step or not > {"growth_interval": 2} > b. u b. a. u b. u ? > 131072:1 [4 0 0 0] Stepped
a second step of an optimizer waits for the update > {} > a. a. ? ax ox u a. ?
    twice weight, 65536:0 [1 0 0 0] -, twice weight, twice weight, 65536:1 [2 0 0 0] Stepped
after an overflow too > {} > ax a. o. u ? o. ? > twice weight, twice weight, 32768:0 [1 1 1 0] -, 32768:0 [2 1 1 0] Stepped
what was observed is not stepped > {} > o. a. b. u ? > twice weight, twice weight, 65536:1 [1 0 0 0] -
what was discarded may be stepped > {} > tx a. u ? > 32768:0 [1 0 1 1] Stepped
dropped gradients teach the scale > {"growth_interval": 2} > dx ? u ? d. u ? d. u ? u ?
    65536:0 [0 0 0 0] -, 32768:0 [0 0 1 1] -, 32768:1 [0 0 0 2] -, 65536:0 [0 0 0 3] -, 65536:0 [0 0 0 3] -
what was stepped with, observed or discarded counts once, as a sum of two does > {} > ax u u ? ox u u ? tx u u ? t+ u u ?
    32768:0 [1 1 1 0] Skipped, 16384:0 [2 2 2 0] Skipped, 8192:0 [2 2 3 1] Dropped, 4096:0 [2 2 4 2] Dropped
a micro-batch that overflows moves the scale at once > {} > mx ? u ? > 32768:0 [0 0 1 0] Dropped, 32768:0 [0 0 1 0] Dropped
an update to a scale keeps the tracker > {} > . a. u=8 ? ax u=4 ? > 8:1 [2 0 0 0] Stepped, 4:1 [3 1 0 0] Skipped
one that is refused does not end the iteration > {"init_scale": 512, "max_scale": 65536} > u=65536 ax u=0 u=-1 u=inf u=NaN u=131072 ? u ?
    refused, refused, refused, refused, refused, 65536:0 [1 1 1 0] Skipped, 32768:0 [1 1 1 0] Skipped
what is held waits > {} > hx u ? k u ? > 65536:0 [0 0 0 0] -, 32768:0 [0 0 1 1] -
a loop that never updates is warned once > {} > dx*600 u ? > warns of a missing update, 32768:0 [0 0 1 256] -
gradients of zero are warned of once > {} > z z . z > warns of underflow
but not where nothing is scaled > {"enabled": false} > z z ? > 1:0 [2 0 0 0] Stepped
a copy has the same iteration to end > {} > ax c u x ? > 16384:0 [2 2 2 0] Skipped, left at 65536
and knows nothing of what was unscaled > {} > dx c u ? > 65536:0 [0 0 0 0] -, left at 65536
a reset starts afresh > {"growth_interval": 2} > x . x ? r ? > 16384:0 [3 2 1 0] Skipped, 65536:0 [0 0 0 0] -
no skip is allowed > {"max_consecutive_skips": 0} > x ? x > ends at 65536 after 1, 65536:0 [1 1 1 0] Skipped, ends at 65536 after 2
of many that are not in a row > {"init_scale": 1024, "max_consecutive_skips": 1} > x . x . x . x . x . x*2 > ends at 16 after 2
50 by default > {} > x*51 > ends at 2^-34 after 51
a floor only stops the backoff, as in Megatron-LM and jmp > {"init_scale": 1024, "min_scale": 300} > x*51 > ends at 300 after 51
the run ends at the floor > {"init_scale": 1024, "min_scale": 300, "raise_error_at_min_scale": true} > x*3 > ends at 300 after 3
at once, if it begins there > {"min_scale": 65536, "raise_error_at_min_scale": true} > x > ends at 65536 after 1
reaching it is no end > {"init_scale": 1024, "min_scale": 512, "raise_error_at_min_scale": true} > x . . . x > ends at 512 after 1
tolerated ones come first > {"min_scale": 65536, "raise_error_at_min_scale": true, "hysteresis": 3} > x*3 > ends at 65536 after 3
and may be refilled > {"min_scale": 65536, "raise_error_at_min_scale": true, "hysteresis": 3, "consecutive_hysteresis": true}
    x*2 . x*2 . x*2 . x*3 > ends at 65536 after 3
the scale stays where it has an inverse > {"raise_error_at_min_scale": true, "max_consecutive_skips": null} > x*144 > ends at 2^-127 after 144
a static scale ends by its skips > {"init_scale": 1024, "dynamic": false, "max_consecutive_skips": 4} > x*5 > ends at 1024 after 5
the iteration of the error is over for all > {"init_scale": 1024, "growth_interval": 1, "max_consecutive_skips": 0} > b. ax ? b. ax u ? s=8 . ?
    ends at 1024 after 1, 1024:0 [2 1 1 0] Skipped, ends at 1024 after 2, 1024:0 [4 2 2 0] Skipped, 16:0 [5 2 0 0] Stepped
a run that only discards ends > {"max_consecutive_skips": 3} > tx u tx u tx u tx ? > ends at 8192 after 4, 8192:0 [0 0 4 4] Dropped
and one that only drops > {"init_scale": 1024, "max_consecutive_skips": 1} > dx u dx u ? > ends at 512 after 2, 512:0 [0 0 2 2] -
without a limit it goes on, and so does a record of the lowest scale > {"max_consecutive_skips": null} > x*200 ? l ? . x . . ?
    2^-127:0 [200 200 200 0] Skipped, 2^-127:0 [200 200 200 0] -, 2^-127:2 [204 201 0 0] Stepped
and a static scale stays > {"init_scale": 1024, "max_consecutive_skips": null, "dynamic": false, "growth_interval": 1} > x*200 ? . x . . ?
    1024:0 [200 200 200 0] Skipped, 1024:0 [204 201 0 0] Stepped
far above where it has worked the scale falls, and skips count from there > {"init_scale": 1024, "growth_interval": 1} > . z*80 ? x*80 ? x*51
    warns of underflow, 2^91:0 [81 0 0 0] Stepped, 2048:0 [161 80 80 0] Skipped, ends at 2^-39 after 131
or to where it began, if it has worked nowhere > {"init_scale": 1024, "growth_interval": 1} > z*81 ? x*80 ? x*51
    warns of underflow, 2^91:0 [81 0 0 0] Stepped, 2048:0 [161 80 80 0] Skipped, ends at 2^-39 after 131
at a floor above that there is nowhere to fall to
    {"init_scale": 1024, "growth_interval": 1, "min_scale": 1024, "backoff_factor": 0.75, "max_consecutive_skips": 9}
    . s=8192 x*14 ? x > 1024:0 [15 14 14 0] Skipped, ends at 1024 after 15
a record has an iteration that is open > {} > ax l u ? > 32768:0 [1 1 1 0] -
other settings are the program's, and one of three tolerated overflows is used up > {"init_scale": 1024, "hysteresis": 3}
    x . . l{"growth_interval":500,"backoff_factor":0.25,"hysteresis":2} ? x ? > warns of other settings, 1024:2 [3 1 0 0] -, 256:0 [4 2 1 0] Skipped
or two of five > {"init_scale": 1024, "hysteresis": 3} > x x . . l{"hysteresis":5} x x ? x ?
    warns of other settings, 1024:0 [6 4 2 0] Skipped, 512:0 [7 5 3 0] Skipped
one call takes the settings of the record, but for scaling at all > {"init_scale": 1024, "hysteresis": 3, "max_scale": 4096}
    x . . w{"growth_interval":1} ? . ? w{"enabled":false} ? > 1024:2 [3 1 0 0] -, 1024:3 [4 1 0 0] Stepped, 1:3 [4 1 0 0] -
a record's scale is moved into the program's bounds > {"init_scale": 1024} > . l{"init_scale":256,"max_scale":512} ? l{"min_scale":2048} ?
    warns of other settings, 512:1 [1 0 0 0] -, warns of other settings, 2048:1 [1 0 0 0] -
a static scale is a setting > {"init_scale": 1024} > . l{"init_scale":8,"dynamic":false} ? > warns of other settings, 8:0 [1 0 0 0] -
also where that of the record is static, which a dynamic one goes on from > {"init_scale": 32, "dynamic": false} > . l{"init_scale":8,"dynamic":false} ? l{} ?
    warns of other settings, 8:0 [1 0 0 0] -, warns of other settings, 8:0 [1 0 0 0] -
and one that a program has set stays in its record > {"init_scale": 32, "dynamic": false} > s=16 l ? > 16:0 [0 0 0 0] -
what was not scaled leaves no scale > {"init_scale": 8, "enabled": false} > . l{"init_scale":1024} ? > warns of other settings, 1024:0 [1 0 0 0] -
the ceiling of an overflow stays in a record > {"init_scale": 1024, "schedule": {"LogMax": {}}} > x l e*9 ? > 512:9 [10 1 0 0] Stepped
unless another rule reads it > {"init_scale": 1024, "schedule": {"LogMax": {}}} > x l{"init_scale":1024,"schedule":{"NearTop":{}}} e*9 ?
    warns of other settings, 262144:9 [10 1 0 0] Stepped
a run that has ended goes on with a lower floor > {"init_scale": 16, "min_scale": 4, "max_consecutive_skips": 3}
    x*4 l x l{"init_scale":16,"max_consecutive_skips":3} ? x ? . ?
    ends at 4 after 4, ends at 4 after 5, warns of other settings, 4:0 [5 5 0 0] -, 2:0 [6 6 1 0] Skipped, 2:1 [7 6 0 0] Stepped
or a higher one > {"init_scale": 16, "min_scale": 4, "max_consecutive_skips": 3}
    x*4 l{"init_scale":128,"min_scale":64,"max_consecutive_skips":3} ? . ?
    ends at 4 after 4, warns of other settings, 64:0 [4 4 0 0] -, 64:1 [5 4 0 0] Stepped
one that has ended at the floor, too > {"init_scale": 16, "min_scale": 4, "raise_error_at_min_scale": true}
    x*3 l x l{"init_scale":16,"raise_error_at_min_scale":true} x ? . ?
    ends at 4 after 3, ends at 4 after 4, warns of other settings, 2:0 [5 5 1 0] Skipped, 2:1 [6 5 0 0] Stepped
or where that is no end > {"init_scale": 16, "min_scale": 4, "raise_error_at_min_scale": true}
    x*3 l{"init_scale":16,"min_scale":4} x ? . ? > ends at 4 after 3, warns of other settings, 4:0 [4 4 1 0] Skipped, 4:1 [5 4 0 0] Stepped
a skip is logged, however its iteration ends > {} > ! . x ax u=16 . mx
    says "step skipped: gradients overflow, first in `bias`, at loss scale 65536, next 32768", says "step skipped: gradients overflow, first in `bias`, at loss scale 32768, next 16", says "micro-batch dropped: gradients overflow, first in `bias`, at loss scale 16, next 8"
and an extreme scale shortly > {"init_scale": 1.2676506002282294e30} > ! x
    says "step skipped: gradients overflow, first in `bias`, at loss scale 1.2676506002282294e30, next 6.338253001141147e29"
an overflow backs log-max off > {"schedule": {"LogMax": {}}} > .*30 ? x ? x ? . ?
    32768:30 [30 0 0 0] Stepped, 16384:0 [31 1 1 0] Skipped, 8192:0 [32 2 2 0] Skipped, 8192:1 [33 2 0 0] Stepped
it goes on from a scale that is set, and so does a record in an iteration > {"schedule": {"LogMax": {}}} > x s=131072 ae l u ? > 262144:1 [2 1 0 0] -
under other parameters with what it remembers > {"schedule": {"LogMax": {}}} > .*30 l{"schedule":{"LogMax":{"beta1":0.9}}} e ?
    warns of other settings, 2048:31 [31 0 0 0] Stepped
zeros under it > {"schedule": {"LogMax": {}}, "growth_interval": 2} > e ? z*60 ? e*4 ?
    131072:1 [1 0 0 0] Stepped, warns of underflow, 131072:1 [61 0 0 0] Stepped, 2^21:1 [65 0 0 0] Stepped
a warm-up holds it down > {"schedule": {"LogMax": {}}, "warmup_steps": 12, "warmup_levels": 3} > ? e*3 ? e ? e*7 ? e ?
    1024:0 [0 0 0 0] -, 1024:3 [3 0 0 0] Stepped, 2048:4 [4 0 0 0] Stepped, 4096:11 [11 0 0 0] Stepped, 8192:12 [12 0 0 0] Stepped
an overflow in that > {"schedule": {"LogMax": {}}, "warmup_steps": 12, "warmup_levels": 3} > e x ? > 512:0 [2 1 1 0] Skipped
an overflow backs near-top off > {"schedule": {"NearTop": {}}} > .*30 ? ax l u ? x ? . ?
    4096:30 [30 0 0 0] Stepped, 2048:0 [31 1 1 0] -, 1024:0 [32 2 2 0] Skipped, 1024:1 [33 2 0 0] Stepped
zeros under it > {"schedule": {"NearTop": {}}, "growth_interval": 2} > ae l u ? z*60 ? e*4 ?
    131072:1 [1 0 0 0] -, warns of underflow, 131072:1 [61 0 0 0] Stepped, 2^21:1 [65 0 0 0] Stepped
"#;

#[test]
fn plays() {
    let table = PLAYS.replace("\n    ", " > ");
    let wrong = rows(&table).filter_map(|[name, settings, calls, expected]| {
        let found = play(settings, calls);
        (found != expected).then(|| format!("{name}: {calls}\n{found}\n"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.concat());
}
