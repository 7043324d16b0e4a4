//! A `PipelinedOptimizer` in a Learner: one update behind between two validations, and stored as if it were not.

use burn_amp::hook::{Applied, Hook};

use crate::module::half;
use crate::support::*;

/// By hand it synchronizes where a Learner validates.
#[test]
fn a_learner_steps_as_a_loop_by_hand() {
    let run = Run::of(4).poisoned([20]);
    let done = run.launch(behind);
    let amp = run.amp();
    let (mut optim, mut steps) = (pipelined(adam(&amp)), 0);
    let net = run.by_hand(amp.attach(net()), lr(), &amp, |lr, net, grads| {
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
    assert!(values(&done.model) != values(&run.launch(burns).model));
}

/// Turned off, it is the run without it: the model, and every byte of its checkpoints. A fused optimizer in it, one update behind, has the
/// numbers of Burn's. With two workers, too, wherever Burn would step: one thread steps for both, in every epoch.
#[test]
fn one_thread_steps_for_all_workers() {
    let run = Run::of(4).poisoned([24 + 9]);
    for workers in [None, Some(WAYS[0]), Some(WAYS[1])] {
        let run = run.clone().with_workers(workers);
        assert_same(&run.launch(burns), &run.launch(synchronous));
        assert!(run.launch(fused_behind).bits() == run.launch(behind).bits());
    }
}

/// Counts the steps that are applied; its owners can be counted.
#[derive(Clone, Debug)]
struct Count(u64, Arc<()>);

impl Hook for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn applied(&mut self, _step: &mut Applied<'_>) {
        self.0 += 1;
    }
}

/// Hooks are as the last step on the other thread has left them, which ends with the run, also where that has ended with a checkpoint.
#[test]
fn a_hook_counts_and_nothing_of_the_thread_is_left() {
    let owners = Arc::new(());
    let counting = with(|amp| pipelined(adam(amp).with_hook(Count(0, owners.clone()))));
    let done = Run::of(2).poisoned([20]).launch(&counting);
    let Count(count, _owners) = done.model.hook().unwrap();
    assert_eq!((*count, done.steps()), (10, (12, 2)));
    drop(done);
    drop(Run::of(2).with_windows(6).launch(counting));
    assert_eq!(Arc::strong_count(&owners), 1);
}

/// They are validated, and trained on. A copy that was given others does not matter.
#[test]
fn parameters_that_are_loaded_take_the_place_of_the_threads() {
    let mut learner = behind(&MixedPrecision::f16()).unwrap();
    let step_on = |learner: &mut _| {
        let batches = batches(&samples(16)).into_iter();
        batches.for_each(|batch| step(learner, batch));
    };
    let own = values(&net());
    step_on(&mut learner);
    let copy = learner.model().load_record(net().into_record());
    assert!(values(&copy.valid()) == own);
    step_on(&mut learner);
    assert!(values(&learner.model().valid()) != own);
    learner.load_model(net().into_record());
    assert!(values(&learner.model().valid()) == own);
    step_on(&mut learner);
    let last = learner.model().valid();
    assert!(values(&last) != own && last.scaler().counters().steps() == 6);
}

#[test]
fn an_update_in_flight_is_counted_where_a_learner_goes_on() {
    let run = Run::of(1).poisoned(0..8);
    let amp = run.amp();
    let (net, mut optim) = (amp.attach(net()), pipelined(adam(&amp)));
    let grads = net.grads(&amp, batches(&run.samples).remove(0));
    let net = optim.step(1e-2, net, grads);
    let learner = amp.learner(net, optim, lr()).unwrap();
    let counters = learner.model().scaler().counters();
    assert_eq!((counters.skipped(), amp.loss_scale()), (1, 32768.0));
}

fn halfs() -> PipelinedOptimizer {
    PipelinedOptimizer::new(burns_adam(), Device::flex()).unwrap()
}

/// A run of parameters in bf16.
fn launch(model: Net, run: &Run, folder: &Folder, optim: impl Into<LearnerOptimizer>) -> Done {
    let amp = MixedPrecision::bf16();
    let learner = amp.learner(model, optim, lr());
    run.train(folder, &amp, learner).finished()
}

/// Parameters that are bf16 themselves have fewer digits than their masters, which are in the checkpoint. Where no thread goes on from them,
/// the log says so.
#[test]
fn half_precision_parameters_resume_from_their_masters() {
    let run = Run::shuffled();
    let whole = launch(half(), &run, &temp_dir(), halfs());
    let first = launch(half(), &run.clone().until(2), &temp_dir(), halfs());
    let resumed = launch(half(), &run.resumed(2), &first.folder, halfs());
    assert_eq!(whole.model.hidden.weight.dtype(), DType::BF16);
    assert_eq!(first.stored(2).masters(), 4);
    assert!(resumed.stored(4).bits() == whole.stored(4).bits());
    assert!(resumed.bits() == whole.bits());

    let masters = MasterWeights::new(AdamConfig::new().build());
    let logged = logs("master weights of 4 parameters, which only", || {
        launch(half(), &Run::of(3).resumed(2), &first.folder, masters);
    });
    only(&logged);
}

/// Whether the optimizer has computed them itself, or loaded them.
#[test]
fn masters_of_a_loop_go_into_a_learner() {
    let train = |model: Net, optim: &mut PipelinedOptimizer| {
        let (batches, mut lr) = (batches(&samples(48)).into_iter(), lr());
        let model = batches.fold(model, |model, batch| {
            let grads = TrainStep::step(&model, batch).grads;
            optim.step(lr.step(), model, grads)
        });
        optim.synchronize(model).unwrap()
    };
    let mut optim = halfs();
    let model = train(half(), &mut optim);
    let [mut by_hand, loaded] = [(); 2].map(|()| {
        let mut loaded = halfs();
        loaded.load_record(optim.to_record()).unwrap();
        loaded
    });
    let expected = by_hand.synchronize(model.clone()).unwrap();
    let expected = train(expected, &mut by_hand);
    for optim in [loaded, optim] {
        let done = launch(model.clone(), &Run::of(1), &temp_dir(), optim);
        assert!(values(&done.model) == values(&expected));
    }
}
