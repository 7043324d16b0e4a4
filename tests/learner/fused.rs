//! A fused optimizer in a `Learner`, whose steps nobody waits for: the run is that of Burn's optimizer, whose steps are waited for, and each
//! goes on from the other's checkpoints.

use crate::support::*;

pub fn learner(amp: &MixedPrecision) -> Made {
    amp.learner(net(), fused(), lr())
}

/// With Burn's optimizer, with the fused one, and one update behind: a pipeline leaves nothing of itself in a checkpoint.
pub const LEARNERS: [fn(&MixedPrecision) -> Made; 3] = [burns, learner, crate::pipelined::learner];

#[test]
fn it_trains_as_burns_and_each_resumes_from_the_others_checkpoints() {
    let expected = Run::shuffled().launch();
    for (first, learner) in LEARNERS.into_iter().enumerate() {
        let half = Run::shuffled().until(2).launch_with(learner);
        let counters = half.stored(2).counters().unwrap();
        assert_eq!(counters, half.counters());
        for (second, learner) in LEARNERS.into_iter().enumerate() {
            let done = Run::shuffled().resumed(2).launch_in(&half.folder, learner);
            assert_eq!(done.counters().steps(), 24);
            assert!(done.counters().skipped() > counters.skipped());
            if first < 2 && second < 2 {
                assert_same(&expected, &done);
            }
        }
    }
}

/// On a thread of its own.
pub fn in_a_pipeline(amp: &MixedPrecision) -> Made {
    let optim = ScaledOptimizer::new(fused(), amp);
    amp.learner(net(), pipelined(optim), lr())
}
