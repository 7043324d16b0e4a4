//! Checkpoints with and without this crate, whole and damaged.

use crate::support::*;

/// A Learner without this crate goes on from a checkpoint with a scaler, and a scaled Learner from the plain one: the optimizer's state is taken over, the
/// scaler starts fresh.
#[test]
fn plain_and_scaled_learners_resume_from_each_other() {
    let folder = Run::of(1).launch(burns).folder;
    let learner = Learner::new(net(), burns_adam(), lr());
    let plain = Run::of(2)
        .resumed(1)
        .training(folder.path())
        .launch(learner);
    assert!(plain.error.is_none());
    // What comes from a plain run has no scaler.
    let checkpoint = Resume::check(folder.path(), 2).unwrap();
    assert!(checkpoint.record().is_none());
    let third = Run::of(3).resumed(2).launch_in(&folder, burns);
    assert_eq!(third.counters().steps(), 6);
    assert_eq!(third.stored_state(3), third.model.scaler().bits());
    for epoch in 1..4 {
        // How many steps Adam has counted, of each parameter.
        let scalars = pack(&file(&folder, "optim", epoch)).scalars.into_iter();
        let times = scalars.filter(|(name, _)| name.ends_with("momentum.time"));
        let times = times.map(|(_, time)| usize::try_from(time).unwrap());
        assert_eq!(times.collect::<Vec<_>>(), [6 * epoch; 4]);
    }
}

/// A damaged state, files that are cut off and missing, and epochs without any.
#[test]
fn what_cannot_be_read_is_an_error_that_names_the_file() {
    let folder = Run::of(2).launch(burns).folder;
    let missing = |folder: &Folder, epoch| Resume::check(folder.path(), epoch).unwrap_err();
    let none = "there is no checkpoint of epoch 1, nor of another";
    says(&missing(&temp_dir(), 1), [none]);
    let others = "there is no checkpoint of epoch 7, but of 1, 2";
    says(&missing(&folder, 7), ["model-7.bpk", others]);
    let file = |name: &str| file(&folder, name, 1);
    let refused = |name: &str, variant: &str| {
        let error = Resume::check(folder.path(), 1).unwrap_err();
        let named = format!("{variant} {{ origin: {:?},", file(name));
        is_error(&error, &named, []);
    };
    let honest = fs::read(file("optim")).unwrap();
    let mut damaged = pack(&file("optim"));
    let state = damaged.tensors.get_mut(&Pack::index_name());
    let (_, (.., bytes)) = state.unwrap();
    bytes[20] ^= 1;
    fs::write(file("optim"), &damaged.into_bytes()[..]).unwrap();
    refused("optim", "DamagedRecord");
    // A Learner can only panic there, as Burn does on any checkpoint that it cannot read.
    let message = panic_message(|| {
        let learner = burns(&Run::of(2).amp()).unwrap();
        Run::of(2)
            .training(folder.path())
            .checkpoint(1)
            .launch(learner)
    });
    says(&message, ["the loss scaler's state", "Resume::check"]);

    fs::write(file("optim"), honest).unwrap();
    for name in ["model", "optim", "scheduler"] {
        let bytes = fs::read(file(name)).unwrap();
        // The scheduler's file is a head and little more.
        fs::write(file(name), &bytes[..40]).unwrap();
        refused(name, "DamagedRecord");
        fs::remove_file(file(name)).unwrap();
        refused(name, "RecordIo");
        fs::write(file(name), bytes).unwrap();
    }
    assert!(Resume::check(folder.path(), 1).unwrap().record().is_some());
}
