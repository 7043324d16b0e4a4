//! Averages of the weights in a Learner: kept in checkpoints, resumed bit for bit.

use crate::support::*;

/// With averages that the other does not keep, and without those that it does, a run goes on: the log says so. A run of as many epochs as
/// the checkpoint has returns what is in that.
#[test]
fn averages_that_only_one_run_keeps_are_dropped_or_start_fresh() {
    let first = Run::of(1).launch(averaging);
    let again = Run::of(1).resumed(1).launch_in(&first.folder, averaging);
    assert!(averaged(&again.model) == averaged(&first.model));
    assert_eq!(again.counters(), first.counters());

    let without = Run::of(2).resumed(1).launch_in(&first.folder, burns);
    assert_eq!(without.counters().steps(), 12);
    assert!(without.model.ema().is_none());
    assert_eq!(without.stored(2).averages(), 0);

    let with = Run::of(3).resumed(2).launch_in(&first.folder, averaging);
    assert_eq!(with.counters().steps(), 18);
    assert_eq!(with.model.ema().unwrap().updates(), 6);
}

/// An optimizer that has averaged before goes on with its averages and its counters.
#[test]
fn averages_go_with_the_optimizer() {
    let amp = Run::of(1).amp();
    let mut optim = adam(&amp).with_ema(ema());
    let net = Run::of(1).by_hand(amp.attach(net()), lr(), &amp, |lr, net, grads| {
        optim.step(lr, net, grads)
    });
    let averages = values(&optim.ema().unwrap().module(&net));
    let model = amp.learner(net, optim, lr()).unwrap().model();
    assert!(averaged(&model).1 == averages);
    assert_eq!(model.scaler().counters().steps(), 6);
}

/// On request validation sees the averages, and so does who gets the model; training goes on with the weights.
#[test]
fn averages_can_drive_validation() {
    let runs = [false, true].map(|validation| {
        let slow = EmaConfig::new().with_momentum(0.999);
        let slow = slow.with_validation(validation);
        Run::of(2).launch(with(|amp| adam(amp).with_ema(slow.clone())))
    });
    let [plain, seen] = runs.each_ref().map(|run| run.model.clone());

    let averages = averaged(&plain).1;
    assert!(averages != values(&plain));
    assert!(values(&seen) == averages);
    assert!(values(&seen.clone().train()) == values(&plain));
    assert!(values(&seen.train().valid()) == averages);
    // The checkpoint has the weights.
    let file = runs[1].folder.path().join("checkpoint/model-2.bpk");
    let stored = Net::new(&Device::flex()).try_load_file(file).unwrap();
    assert!(values(&stored) == values(&plain));
    // And the training is the same, the validation another.
    for split in ["train", "valid"] {
        let read = |run: &Done| fs::read_to_string(run.log(split, 2, "Loss")).unwrap();
        assert_eq!(read(&runs[0]) == read(&runs[1]), split == "train");
    }
    assert_eq!(runs[1].metric(2, "Loss").len(), 7);
}
