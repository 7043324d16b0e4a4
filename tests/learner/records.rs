//! Checkpoints with and without this crate, whole and damaged.

use burn::optim::LionConfig;
use burn_pack::Writer;
use std::{fs, path::Path};

use crate::support::*;

fn plain(run: &Run, optim: ModuleOptimizer, folder: &Folder) -> Net {
    let learner = Learner::new(net(), optim, lr());
    let result = run.training(folder.path()).launch(learner);
    assert!(result.error.is_none());
    result.model
}

fn optimizers() -> Vec<(&'static str, ModuleOptimizer)> {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let momentum = SgdConfig::new().with_momentum(Some(momentum));
    let master = MasterWeights::new(AdamConfig::new().build());
    vec![
        ("Adam", AdamConfig::new().init()),
        ("AdamW", AdamWConfig::new().init()),
        ("Lion", LionConfig::new().init()),
        ("RMSProp", RmsPropConfig::new().init()),
        ("SGD", SgdConfig::new().init()),
        ("momentum", momentum.init()),
        ("masters", master.into_inner()),
    ]
}

/// What an optimizer has counted or summed, of all parameters of the model.
fn state(folder: &Folder, epoch: usize) -> Vec<String> {
    let file = format!("checkpoint/optim-{epoch}.bpk");
    let pack = pack(&folder.path().join(file));
    let names = pack.tensors.keys().chain(pack.scalars.keys());
    let field = |name: &String| {
        let (id, field) = name.split_once('.').unwrap();
        (id != STATE_ID.to_string()).then(|| field.to_string())
    };
    let mut names: Vec<_> = names.filter_map(field).collect();
    names.sort();
    names
}

/// A Learner without this crate goes on from a checkpoint with a scaler, whatever its optimizer, and a scaled Learner from the plain one:
/// the optimizer's state is taken over, the scaler starts fresh.
#[test]
fn plain_and_scaled_learners_resume_from_each_other() {
    for (name, optim) in optimizers() {
        println!("{name}");
        let scaled = |amp: &MixedPrecision| amp.learner(net(), optim.clone(), lr());
        let Done { model, folder, .. } = Run::of(1).launch_with(scaled);
        let forgetful = temp_dir();
        copy(folder.path(), forgetful.path());
        let second = plain(&Run::of(2).resumed(1), optim.clone(), &folder);
        assert!(values(&second) != values(&model));
        assert_eq!(state(&folder, 1), state(&folder, 2));

        // The state was taken over: with a fresh one, the second epoch is another.
        let file = forgetful.path().join("checkpoint/optim-1.bpk");
        Writer::new(Vec::new()).write_to_file(file).unwrap();
        let other = plain(&Run::of(2).resumed(1), optim.clone(), &forgetful);
        assert_eq!(values(&other) == values(&second), name == "SGD");

        // And back again: what comes from a plain run has no scaler.
        let record = |epoch| Resume::check(folder.path(), epoch).unwrap();
        assert!(record(2).record().is_none());
        let third = Run::of(3).resumed(2).launch_in(&folder, scaled);
        assert_eq!(third.counters().steps(), 6);
        assert_eq!(state(&folder, 2), state(&folder, 3));
        let scaler = third.model.scaler();
        assert_eq!(stored_state(&record(3)), scaler.bits());
    }
}

/// The first forward pass of a resumed run has the scale of the checkpoint already.
#[test]
fn the_loss_scale_is_there_as_soon_as_the_checkpoint_is_read() {
    let done = Run::of(2).launch();
    let scale = done.model.scaler().loss_scale();
    assert!(scale != 65536.0, "{scale}");
    let second = Run::of(2).resumed(2);
    let amp = second.amp();
    let mut learner = burns(&amp).unwrap();
    assert_eq!(amp.loss_scale(), 65536.0);
    let file = done.folder.path().join("checkpoint/optim-2.bpk");
    learner.load_optim(OptimizerRecord::load(file).unwrap());
    assert_eq!(amp.loss_scale(), scale);
}

/// Changes the bytes of the scaler's state.
fn rewrite_state(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let bytes = Bytes::from_bytes_vec(fs::read(path).unwrap());
    let mut pack = burn_amp_tests::pack(bytes);
    let state = pack.tensors.get_mut(&format!("{STATE_ID}.scaler"));
    let (_, (_, shape, bytes)) = state.unwrap();
    change(bytes);
    *shape = vec![bytes.len()];
    fs::write(path, &pack.into_bytes()[..]).unwrap();
}

#[test]
fn a_damaged_state_is_an_error_that_names_the_file() {
    let folder = Run::of(1).launch().folder;
    let file = folder.path().join("checkpoint/optim-1.bpk");
    assert!(Resume::check(folder.path(), 1).unwrap().record().is_some());
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
        |bytes| bytes.truncate(10),
        |bytes| bytes.clear(),
    ];
    for damage in damages {
        rewrite_state(&file, damage);
        assert_refused(&folder, &file, "DamagedRecord");
    }

    // A Learner can only panic there, as Burn does on any checkpoint that it cannot read.
    let second = Run::of(2);
    let message = panic_message(|| {
        let learner = burns(&second.amp()).unwrap();
        second.training(folder.path()).checkpoint(1).launch(learner)
    });
    says(&message, ["the loss scaler's state", "Resume::check"]);
}

/// The first checkpoint cannot be read, with an error of this variant that names the file.
fn assert_refused(folder: &Folder, file: &Path, variant: &str) {
    let error = Resume::check(folder.path(), 1).unwrap_err();
    let named = format!("{variant} {{ origin: {file:?},");
    is_error(&error, &named, []);
}

#[test]
fn missing_and_truncated_files_are_errors_that_name_the_file() {
    for name in ["model", "optim", "scheduler"] {
        let folder = Run::of(1).launch().folder;
        let file = folder.path().join(format!("checkpoint/{name}-1.bpk"));

        let bytes = fs::read(&file).unwrap();
        // The scheduler's file is a head and little more.
        let kept = match name {
            "scheduler" => 40,
            _ => bytes.len() / 2,
        };
        fs::write(&file, &bytes[..kept]).unwrap();
        assert_refused(&folder, &file, "DamagedRecord");

        fs::remove_file(&file).unwrap();
        assert_refused(&folder, &file, "RecordIo");
    }
}

/// What the metrics show after a record was loaded by hand is the loaded run, not the one before.
#[test]
fn the_monitor_shows_what_was_loaded() {
    let trained = |epochs| {
        let run = Run::of(epochs);
        let amp = run.amp();
        let mut optim = adam(&amp);
        run.by_hand(&amp, &mut optim);
        (amp, optim)
    };
    let shown = |amp: &MixedPrecision, optim: &ScaledOptimizer, steps: u64| {
        let scaler = optim.scaler();
        assert_eq!(amp.counters(), scaler.counters());
        assert_eq!(amp.counters().steps(), steps);
        assert_eq!(amp.loss_scale(), scaler.loss_scale());
        (amp.last_outcome(), amp.last_status().is_some())
    };
    let (_, mut stored) = trained(1);
    let plain = AmpRecord::from_bytes(AdamConfig::new().init().into_bytes().unwrap()).unwrap();
    for (record, steps) in [(stored.to_record(), 6), (plain, 0)] {
        let (amp, mut optim) = trained(2);
        let stepped = (Some(StepOutcome::Stepped), true);
        assert_eq!(shown(&amp, &optim, 12), stepped);
        optim.load_record(record).unwrap();
        assert_eq!(shown(&amp, &optim, steps), (None, false));
    }
}

/// Those of one that is dropped too, with steps that the device has decided. A record brings its own, in place of what its optimizer has
/// counted.
#[test]
fn the_monitor_counts_the_steps_of_all_optimizers() {
    let waited = counted(adam);
    assert_eq!(waited.steps(), 48);
    let pending = counted(|amp| ScaledOptimizer::new(fused(), amp));
    assert_eq!(pending, waited);
}

/// The counters after three trainings with Burn's optimizer, and one with this one.
fn counted<O: ModuleOptim>(last: impl Fn(&MixedPrecision) -> ScaledOptimizer<O>) -> StepCounters {
    let run = Run::of(2).poisoned([11]);
    let amp = run.amp();
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut optim = adam(&amp);
        run.by_hand(&amp, &mut optim);
        optim
    });
    let both = [&first, &second].map(|optim| optim.scaler().counters());
    let counters = amp.counters();
    assert_eq!(both.map(|counters| counters.steps()), [12, 12]);
    assert_eq!(counters.steps(), 24);
    let skipped = both[0].skipped() + both[1].skipped();
    assert_eq!((counters.skipped(), skipped > 1), (skipped, true));
    first.load_record(second.to_record()).unwrap();
    run.by_hand(&amp, &mut first);
    let steps = (first.scaler().counters().steps(), amp.counters().steps());
    assert_eq!(steps, (24, 36));
    drop((first, second));
    run.by_hand(&amp, &mut last(&amp));
    amp.counters()
}
