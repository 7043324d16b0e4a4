//! A `PipelinedOptimizer` in a Learner: one update behind between two validations, and stored as if it were not.

use crate::{
    master::{Half, half},
    support::*,
};

pub fn learner(amp: &MixedPrecision) -> Made {
    amp.learner(net(), pipelined(adam(amp)), lr())
}

/// By hand it synchronizes where a Learner validates.
#[test]
fn a_learner_steps_as_a_loop_by_hand() {
    let run = Run::default().poisoned([20]);
    let done = run.launch_with(learner);
    let amp = run.amp();
    let (mut optim, mut steps) = (pipelined(adam(&amp)), 0);
    let net = run.by_hand_with(&amp, |lr, net, grads| {
        steps += 1;
        let net = optim.step(lr, net, grads);
        match steps % 6 {
            0 => optim.synchronize(net).unwrap(),
            _ => net,
        }
    });
    assert!(values(&done.model) == values(&net));
    assert_eq!(done.steps(), (24, 4));
    assert_eq!(done.model.scaler().loss_scale(), amp.loss_scale());
    // It is not what a run without a pipeline gives.
    assert!(values(&done.model) != values(&run.launch().model));
}

/// Turned off, it is the run without it, clipped or not: the model, and every byte of its checkpoints.
#[test]
fn a_synchronous_run_is_the_one_without_a_pipeline() {
    let run = Run::shuffled();
    let plain = run.launch();
    let synchronous = run
        .launch_with(|amp| amp.learner(net(), pipelined(adam(amp)).with_synchronous(true), lr()));
    assert_same(&plain, &synchronous);

    let clip = |amp: &MixedPrecision| adam(amp).with_clipping(GradientClip::Value(1e-4));
    let clipped = run
        .launch_with(|amp| amp.learner(net(), pipelined(clip(amp)).with_synchronous(true), lr()));
    assert_same(&run.launch_with(with(clip)), &clipped);
    assert!(values(&clipped.model) != values(&plain.model));
}

/// A run may be resumed without the pipeline, and one without it with it.
#[test]
fn checkpoints_know_nothing_of_the_pipeline() {
    let both: [fn(&MixedPrecision) -> Made; 2] = [burns, learner];
    for [first, second] in [both, [both[1], both[0]]] {
        let half = Run::shuffled().until(2).launch_with(first);
        let stored = Resume::check(half.folder.path(), 2).unwrap();
        let counters = stored.record().unwrap().counters().unwrap();
        assert_eq!(counters, half.counters());
        let done = Run::shuffled().resumed(2).launch_in(&half.folder, second);
        assert_eq!(done.counters().steps(), 24);
        assert!(done.counters().skipped() > counters.skipped());
    }
}

/// Parameters that are bf16 themselves have fewer digits than their masters, which are in the checkpoint.
#[test]
fn half_precision_parameters_resume_from_their_masters() {
    let launch = |run: &Run, folder: &Folder| -> Done<Model<Half>> {
        let amp = MixedPrecision::bf16();
        let optim = PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
        let learner = amp.learner(half(), optim, lr()).unwrap();
        run.train(folder, &amp, learner)
    };
    let [whole, first, resumed] = resumed_with(&Run::shuffled(), launch);
    let weight = &whole.model.own.net.hidden.weight;
    assert_eq!(weight.val().dtype(), DType::BF16);
    let record = |done: &Done<_>, epoch| {
        let stored = Resume::check(done.folder.path(), epoch).unwrap();
        stored.record().unwrap().clone()
    };
    assert_eq!(record(&first, 2).masters(), 4);
    assert!(record(&resumed, 4).bits() == record(&whole, 4).bits());
    assert!(resumed.bits() == whole.bits());
}
