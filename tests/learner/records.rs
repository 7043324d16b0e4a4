//! Checkpoints with and without this crate, whole and damaged.

use burn::optim::LionConfig;
use burn_pack::Writer;

use crate::support::*;

/// A run without this crate.
fn plain(run: &Run, optim: ModuleOptimizer, folder: &Folder) -> Vec<Values> {
    let learner = Learner::new(net(), optim, lr());
    let result = run.training(folder.path()).launch(learner);
    assert!(result.error.is_none());
    values(&result.model)
}

/// What an optimizer has counted or summed, of all parameters of the model.
fn state(folder: &Folder, epoch: usize) -> Vec<String> {
    let file = format!("checkpoint/optim-{epoch}.bpk");
    let pack = pack(&folder.path().join(file));
    let names = pack.tensors.keys().chain(pack.scalars.keys());
    let field = |name: &String| {
        let (id, field) = name.split_once('.').unwrap();
        (id != SECTION.to_string()).then(|| field.to_string())
    };
    let mut names: Vec<_> = names.filter_map(field).collect();
    names.sort();
    names
}

/// A Learner without this crate goes on from a checkpoint with a scaler, whatever its optimizer, and a scaled Learner from the plain one:
/// the optimizer's state is taken over, the scaler starts fresh.
#[test]
fn plain_and_scaled_learners_resume_from_each_other() {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let masters = MasterWeights::new(AdamConfig::new().build());
    for (optim, has_state) in [
        (AdamConfig::new().init(), true),
        (AdamWConfig::new().init(), true),
        (LionConfig::new().init(), true),
        (RmsPropConfig::new().init(), true),
        (SgdConfig::new().init(), false),
        (momentum.init(), true),
        (masters.into_inner(), true),
    ] {
        let scaled = with(|_| optim.clone());
        let Done { model, folder, .. } = Run::of(1).launch(&scaled);
        let forgetful = temp_dir();
        copy(folder.path(), forgetful.path());
        let second = plain(&Run::of(2).resumed(1), optim.clone(), &folder);
        assert!(second != values(&model));
        assert_eq!(state(&folder, 1), state(&folder, 2));

        // The state was taken over: with a fresh one, the second epoch is another.
        let file = forgetful.path().join("checkpoint/optim-1.bpk");
        Writer::new(Vec::new()).write_to_file(file).unwrap();
        let other = plain(&Run::of(2).resumed(1), optim.clone(), &forgetful);
        assert_eq!(other != second, has_state);

        // And back again: what comes from a plain run has no scaler.
        let checkpoint = Resume::check(folder.path(), 2).unwrap();
        assert!(checkpoint.record().is_none());
        let third = Run::of(3).resumed(2).launch_in(&folder, &scaled);
        assert_eq!(third.counters().steps(), 6);
        assert_eq!(state(&folder, 2), state(&folder, 3));
        assert_eq!(third.stored_state(3), third.model.scaler().bits());
    }
}

/// A damaged state, and files that are cut off and missing.
#[test]
fn what_cannot_be_read_is_an_error_that_names_the_file() {
    let folder = Run::of(1).launch(burns).folder;
    let file = |name: &str| folder.path().join(format!("checkpoint/{name}-1.bpk"));
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
    let second = Run::of(2);
    let message = panic_message(|| {
        let learner = burns(&second.amp()).unwrap();
        second.training(folder.path()).checkpoint(1).launch(learner)
    });
    says(&message, ["the loss scaler's state", "Resume::check"]);

    fs::write(file("optim"), honest).unwrap();
    for name in ["model", "optim", "scheduler"] {
        let bytes = fs::read(file(name)).unwrap();
        // The scheduler's file is a head and little more.
        let kept = if name == "scheduler" {
            40
        } else {
            bytes.len() / 2
        };
        fs::write(file(name), &bytes[..kept]).unwrap();
        refused(name, "DamagedRecord");
        fs::remove_file(file(name)).unwrap();
        refused(name, "RecordIo");
        fs::write(file(name), bytes).unwrap();
    }
    assert!(Resume::check(folder.path(), 1).unwrap().record().is_some());
}
