//! A fused optimizer in a `Learner`, whose steps nobody waits for: the run is that of Burn's optimizer, whose steps are waited for, and each
//! goes on from the other's checkpoints.

use crate::support::*;

pub fn learner(amp: &MixedPrecision) -> Made {
    amp.learner(net(), fused(), lr())
}

/// With the fused optimizer, and with Burn's.
const BOTH: [fn(&MixedPrecision) -> Made; 2] = [learner, burns];

#[test]
fn it_trains_as_burns_and_resumes_from_its_checkpoints() {
    let expected = Run::shuffled().launch();
    let counters = expected.counters();
    assert!(counters.skipped() > 0 && counters.stepped() > 0);
    for first in BOTH {
        let folder = Run::shuffled().until(2).launch_with(first).folder;
        for second in BOTH {
            let done = Run::shuffled().resumed(2).launch_in(&folder, second);
            assert_same(&expected, &done);
        }
    }
}

/// Every third step is skipped, and the next one is decided before the host knows its outcome.
#[test]
fn a_long_run_is_the_one_that_waits() {
    let run = Run::shuffled().until(12).poisoned([40]);
    let check = |done: Done| {
        let counters = done.counters();
        assert_eq!(counters, done.amp.counters());
        assert_eq!(counters.steps(), 6 * 12);
        assert!(counters.skipped() >= 12, "{counters:?}");
        done.bits()
    };
    let pending = check(run.launch_with(learner));
    let waited = with(|amp| ScaledOptimizer::new(Waited(fused()), amp));
    assert!(pending == check(run.launch_with(waited)));
    assert!(pending == check(run.launch()));
}

/// On a thread of its own.
fn in_a_pipeline(amp: &MixedPrecision) -> Made {
    let optim = ScaledOptimizer::new(fused(), amp);
    amp.learner(net(), pipelined(optim), lr())
}

/// The error is that of a step before, and ends the run all the same.
#[test]
fn an_exhausted_scale_ends_the_run() {
    let learners: [fn(&MixedPrecision) -> Made; 2] = [learner, in_a_pipeline];
    for learner in learners {
        let run = Run::of(400).with_skips(3).poisoned(0..48);
        let (done, error) = run.failed(learner);
        says(&done.error.unwrap(), ["loss scale exhausted"]);
        is_error(&error, "LossScaleExhausted", ["after 4 skipped steps"]);
        assert!(all_finite(&done.model));
        let before = values(&net());
        assert!(values(&done.model) == before);

        // Another optimizer, of which nobody knows the kind, goes on with the model. It is stepped as Burn's.
        let steps = done.model.scaler().counters().steps();
        let again = Learner::new(done.model.train(), AdamConfig::new().init(), lr());
        let done = Run::of(1).train(&temp_dir(), &done.amp, Ok(again));
        let done = done.finished();
        assert_eq!(done.counters().steps(), steps + 6);
        assert!(values(&done.model) != before);
    }
}

/// One update behind, in one pass: with the numbers of Burn's optimizer in a pipeline.
#[test]
fn it_steps_in_a_pipeline() {
    let run = Run::shuffled();
    let burns = run.launch_with(crate::pipelined::learner);
    assert!(run.launch_with(in_a_pipeline).bits() == burns.bits());
}
