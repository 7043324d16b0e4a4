//! Checkpoints with and without this crate, whole and damaged.

use burn::{
    optim::{
        AdamConfig, AdamWConfig, LionConfig, ModuleOptimizer, RmsPropConfig, SgdConfig,
        momentum::MomentumConfig,
    },
    train::LearningResult,
};
use burn_amp::{
    AmpError, AmpRecord, FusedAdam, MasterWeights, MixedPrecision, Resume, Scaled, ScaledOptimizer,
    StepOutcome,
};
use burn_pack::{Reader, Tensor, Writer};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::support::{
    Net, Run, STATE_ID, pack, poison, scaler_state, stored_state, temp_dir, values,
};

fn run(epochs: usize, resume: Option<usize>) -> Run {
    Run {
        epochs,
        resume,
        ..Run::default()
    }
}

fn scaled(run: &Run, optim: ModuleOptimizer, folder: &Path) -> Scaled<Net> {
    let amp = run.amp();
    let learner = run.learner_of(&amp, ScaledOptimizer::new(optim, &amp));
    let result = amp.training(run.training(folder)).launch(learner);
    assert!(result.error.is_none());
    result.model
}

fn plain(run: &Run, optim: ModuleOptimizer, folder: &Path) -> Net {
    let result: LearningResult<Net> = run.training(folder).launch(run.plain(optim));
    assert!(result.error.is_none());
    result.model
}

fn optimizers() -> Vec<(&'static str, ModuleOptimizer)> {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let master = MasterWeights::new(AdamConfig::new().build());
    vec![
        ("Adam", AdamConfig::new().init()),
        ("AdamW", AdamWConfig::new().init()),
        ("Lion", LionConfig::new().init()),
        ("RMSProp", RmsPropConfig::new().init()),
        ("SGD", SgdConfig::new().init()),
        (
            "momentum",
            SgdConfig::new().with_momentum(Some(momentum)).init(),
        ),
        ("masters", master.into_inner()),
    ]
}

/// What an optimizer has counted or summed, of all parameters of the model.
fn state(folder: &Path, epoch: usize) -> Vec<String> {
    let pack = pack(&folder.join(format!("checkpoint/optim-{epoch}.bpk")));
    let names = pack.tensors.keys().chain(pack.scalars.keys());
    let field = |name: &String| {
        let (id, field) = name.split_once('.').unwrap();
        (id != STATE_ID.to_string()).then(|| field.to_string())
    };
    let mut names: Vec<_> = names.filter_map(field).collect();
    names.sort();
    names
}

/// A Learner without this crate goes on from a checkpoint with a scaler, whatever its optimizer.
#[test]
fn a_plain_learner_resumes_a_scaled_checkpoint() {
    for (name, optim) in optimizers() {
        println!("{name}");
        let folder = temp_dir();
        let first = scaled(&run(1, None), optim.clone(), folder.path());
        let before = values(&first);
        let second = plain(&run(2, Some(1)), optim.clone(), folder.path());
        assert!(values(&second) != before);
        assert_eq!(state(folder.path(), 1), state(folder.path(), 2));

        // The state was taken over: with a fresh one, the second epoch is another.
        let forgetful = temp_dir();
        copy(folder.path(), forgetful.path());
        let file = forgetful.path().join("checkpoint/optim-1.bpk");
        Writer::new(Vec::new()).write_to_file(file).unwrap();
        let other = plain(&run(2, Some(1)), optim, forgetful.path());
        assert_eq!(values(&other) == values(&second), name == "SGD");

        // And back again: what comes from a plain run has no scaler, which starts fresh.
        assert!(Resume::check(folder.path(), 2).unwrap().record().is_none());
    }
}

/// A scaled Learner goes on from a plain checkpoint: the optimizer's state is taken over, the scaler starts fresh.
#[test]
fn a_scaled_learner_resumes_a_plain_checkpoint() {
    for (name, optim) in optimizers() {
        println!("{name}");
        let folder = temp_dir();
        plain(&run(1, None), optim.clone(), folder.path());
        assert!(Resume::check(folder.path(), 1).unwrap().record().is_none());
        let model = scaled(&run(2, Some(1)), optim, folder.path());
        assert_eq!(model.scaler().counters().steps(), 6);
        assert_eq!(state(folder.path(), 1), state(folder.path(), 2));
        let stored = Resume::check(folder.path(), 2).unwrap();
        assert_eq!(stored_state(&stored), scaler_state(model.scaler()));
    }
}

/// The first forward pass of a resumed run has the scale of the checkpoint already.
#[test]
fn the_loss_scale_is_there_as_soon_as_the_checkpoint_is_read() {
    let folder = temp_dir();
    let model = run(2, None).launch(folder.path()).model;
    let scale = model.scaler().loss_scale();
    assert!(scale != 65536.0, "{scale}");
    let second = run(2, Some(2));
    let amp = second.amp();
    let mut learner = second.learner(&amp);
    assert_eq!(amp.loss_scale(), 65536.0);
    let file = folder.path().join("checkpoint/optim-2.bpk");
    learner.load_optim(burn::optim::OptimizerRecord::load(file).unwrap());
    assert_eq!(amp.loss_scale(), scale);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to.join("checkpoint")).unwrap();
    for name in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{name}-1.bpk");
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// Changes the bytes of the scaler's state.
fn rewrite_state(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let reader = Reader::from_file(path).unwrap();
    let scalars = reader.scalars().clone();
    let mut tensors = reader.into_tensors().unwrap();
    let name = format!("{STATE_ID}.scaler");
    let index = tensors.iter().position(|tensor| tensor.name == name);
    let (name, dtype, _, id, bytes) = tensors.remove(index.unwrap()).into_parts().unwrap();
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let shape = burn::tensor::Shape::from([bytes.len()]);
    let bytes = burn::tensor::Bytes::from_bytes_vec(bytes);
    tensors.push(Tensor::new(name, dtype, shape, id, bytes));
    let mut writer = Writer::new(tensors);
    for (name, value) in scalars {
        writer = writer.with_scalar(&name, value);
    }
    writer.write_to_file(path).unwrap();
}

#[test]
fn a_damaged_state_is_an_error_that_names_the_file() {
    let folder = temp_dir();
    run(1, None).launch(folder.path());
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
        let error = Resume::check(folder.path(), 1).unwrap_err();
        assert!(
            matches!(&error, AmpError::DamagedRecord { origin, .. } if *origin == file.display().to_string()),
            "{error}"
        );
    }

    // A Learner can only panic there, as Burn does on any checkpoint that it cannot read.
    let second = run(2, None);
    let resumed = || {
        let amp = second.amp();
        let learner = second.learner(&amp);
        second.training(folder.path()).checkpoint(1).launch(learner)
    };
    let panic = catch_unwind(AssertUnwindSafe(resumed)).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("the loss scaler's state"), "{message}");
    assert!(message.contains("Resume::check"), "{message}");
}

#[test]
fn missing_and_truncated_files_are_errors_that_name_the_file() {
    for name in ["model", "optim", "scheduler"] {
        let folder = temp_dir();
        run(1, None).launch(folder.path());
        let file = folder.path().join(format!("checkpoint/{name}-1.bpk"));
        let origin = file.display().to_string();

        let bytes = fs::read(&file).unwrap();
        // The scheduler's file is a head and little more.
        let kept = if name == "scheduler" {
            40
        } else {
            bytes.len() / 2
        };
        fs::write(&file, &bytes[..kept]).unwrap();
        let error = Resume::check(folder.path(), 1).unwrap_err();
        assert!(
            matches!(&error, AmpError::DamagedRecord { origin: o, .. } if *o == origin),
            "{error}"
        );

        fs::remove_file(&file).unwrap();
        let error = Resume::check(folder.path(), 1).unwrap_err();
        assert!(
            matches!(&error, AmpError::RecordIo { origin: o, .. } if *o == origin),
            "{error}"
        );
    }
}

/// What the metrics show after a record was loaded by hand is the loaded run, not the one before.
#[test]
fn the_monitor_shows_what_was_loaded() {
    let trained = |epochs| {
        let run = run(epochs, None);
        let amp = run.amp();
        let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
        run.by_hand(&amp, &mut optim);
        (amp, optim)
    };
    let (_, mut stored) = trained(1);
    let plain = AmpRecord::from_bytes(AdamConfig::new().init().into_bytes().unwrap()).unwrap();
    let (amp, mut optim) = trained(2);
    let monitor = amp.clone();
    let check = |optim: &ScaledOptimizer<ModuleOptimizer>, steps: u64| {
        let scaler = optim.scaler();
        assert_eq!(monitor.counters(), scaler.counters());
        assert_eq!(monitor.counters().steps(), steps);
        assert_eq!(monitor.loss_scale(), scaler.loss_scale());
        (monitor.last_outcome(), monitor.last_status().is_some())
    };
    assert_eq!(check(&optim, 12), (Some(StepOutcome::Stepped), true));
    optim.load_record(stored.to_record()).unwrap();
    assert_eq!(check(&optim, 6), (None, false));

    let (amp, mut optim) = trained(2);
    let monitor = amp.clone();
    optim.load_record(plain).unwrap();
    assert_eq!(
        (monitor.counters().steps(), monitor.last_outcome()),
        (0, None)
    );
    assert_eq!(monitor.loss_scale(), optim.scaler().loss_scale());
}

/// Those of one that is dropped too, with steps that the device has decided. A record brings its own, in place of what its optimizer has
/// counted.
#[test]
fn the_monitor_counts_the_steps_of_all_optimizers() {
    let mut run = run(2, None);
    poison(&mut run.samples, 11);
    let counted = |last: &dyn Fn(&MixedPrecision)| {
        let amp = run.amp();
        let optims = [(); 2].map(|()| {
            let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
            run.by_hand(&amp, &mut optim);
            optim
        });
        let [mut first, mut second] = optims;
        let both = [&first, &second].map(|optim| optim.scaler().counters());
        let counters = amp.counters();
        assert_eq!(
            (both[0].steps(), both[1].steps(), counters.steps()),
            (12, 12, 24)
        );
        let skipped = both[0].skipped() + both[1].skipped();
        assert_eq!((counters.skipped(), skipped > 1), (skipped, true));
        first.load_record(second.to_record()).unwrap();
        run.by_hand(&amp, &mut first);
        assert_eq!(
            (first.scaler().counters().steps(), amp.counters().steps()),
            (24, 36)
        );
        drop((first, second));
        last(&amp);
        amp.counters()
    };
    let adam = AdamConfig::new;
    let waited = counted(&|amp| {
        run.by_hand(amp, &mut ScaledOptimizer::new(adam().init(), amp));
    });
    let pending = counted(&|amp| {
        let fused = FusedAdam::new(adam()).unwrap();
        run.by_hand(amp, &mut ScaledOptimizer::new(fused, amp));
    });
    assert_eq!((waited.steps(), pending), (48, waited));
}
