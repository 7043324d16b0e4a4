//! Records of a `Scaled` model and of a bare one, whole and damaged.

use burn::{module::Module, store::ModuleRecord, tensor::Device};
use burn_amp::{
    AmpError, GradScalerConfig, Scaled,
    train::{check_checkpoint, checkpointers},
};
use burn_pack::{Reader, Tensor, Writer};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::support::{Net, Run, parameters};

fn scaled(scale: f64) -> Scaled<Net> {
    let config = GradScalerConfig::new().with_init_scale(scale);
    Scaled::new(Net::f16(&Device::flex().autodiff()), config.init().unwrap())
}

/// Three lines, as documented.
#[test]
fn the_record_of_a_scaled_model_loads_into_a_bare_one() {
    let folder = tempfile::tempdir().unwrap();
    let result = Run {
        epochs: 1,
        ..Run::default()
    }
    .launch(folder.path());

    let record = ModuleRecord::load(folder.path().join("checkpoint/model-1.bpk")).unwrap();
    let record = record.allow_unused(true);
    let net = Net::f16(&Device::flex().autodiff())
        .try_load_record(record)
        .unwrap();
    assert_eq!(parameters(&net), parameters(result.model.inner()));
}

#[test]
fn the_record_of_a_bare_model_starts_the_scaler_afresh() {
    let mut model = scaled(1024.0);
    let net = model.inner().clone();
    let mut moved = model.scaler().clone();
    moved.set_loss_scale(8.0).unwrap();
    model = Scaled::new(net.clone(), moved);

    let loaded = model.try_load_record(net.clone().into_record()).unwrap();
    assert_eq!(loaded.scaler().loss_scale(), 1024.0);
    assert_eq!(parameters(&loaded), parameters(&net));

    // What is missing of the model itself is still an error.
    let part = net
        .clone()
        .into_record_group(burn::module::ParamGroup::from_path("head.bias"));
    let error = scaled(1.0).try_load_record(part).unwrap_err();
    assert!(error.to_string().contains("hidden.weight"), "{error}");
}

#[test]
fn a_resumed_learner_takes_a_checkpoint_without_scaling() {
    let folder = tempfile::tempdir().unwrap();
    Run {
        epochs: 1,
        ..Run::default()
    }
    .launch(folder.path());
    let file = folder.path().join("checkpoint/model-1.bpk");
    rewrite(&file, |tensors| {
        tensors.retain(|tensor| tensor.name != "burn_amp.scaler")
    });
    assert_eq!(check_checkpoint(folder.path(), 1), Ok(None));

    let resumed = Run {
        epochs: 2,
        resume: Some(1),
        ..Run::default()
    };
    let model = resumed.launch(folder.path()).model;
    assert_eq!(model.scaler().counters().steps(), 6);
}

/// Changes the tensors of a file.
fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<Tensor>)) {
    let mut tensors = Reader::from_file(path).unwrap().into_tensors().unwrap();
    change(&mut tensors);
    Writer::new(tensors).write_to_file(path).unwrap();
}

/// Changes one value of the scaler's state.
fn spoil(path: &Path) {
    rewrite_state(path, |words| words[50] ^= 1);
}

/// Changes the numbers of the scaler's state, two bytes of it in each.
fn rewrite_state(path: &Path, change: impl FnOnce(&mut [u16])) {
    rewrite(path, |tensors| {
        let index = tensors
            .iter()
            .position(|tensor| tensor.name == "burn_amp.scaler")
            .unwrap();
        let (name, dtype, shape, id, bytes) = tensors.remove(index).into_parts().unwrap();
        let low = |number: &[u8]| u16::from_le_bytes([number[0], number[1]]);
        let mut words: Vec<u16> = bytes.chunks_exact(4).map(low).collect();
        change(&mut words);
        let numbers = words
            .into_iter()
            .flat_map(|word| u32::from(word).to_le_bytes());
        let bytes = burn::tensor::Bytes::from_bytes_vec(numbers.collect());
        tensors.push(Tensor::new(name, dtype, shape, id, bytes));
    });
}

#[test]
fn a_damaged_state_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    Run {
        epochs: 1,
        ..Run::default()
    }
    .launch(folder.path());
    let file = folder.path().join("checkpoint/model-1.bpk");
    assert!(check_checkpoint(folder.path(), 1).unwrap().is_some());
    spoil(&file);

    let error = check_checkpoint(folder.path(), 1).unwrap_err();
    assert!(
        matches!(&error, AmpError::DamagedRecord { origin, .. } if *origin == file.display().to_string())
    );
    assert!(
        error
            .to_string()
            .contains("the loss scaler's state is damaged"),
        "{error}"
    );

    let error = scaled(1.0).try_load_file(&file).unwrap_err().to_string();
    assert!(
        error.contains("model-1.bpk") && error.contains("scaler's state is damaged"),
        "{error}"
    );

    // A Learner can only panic there, as Burn does on any checkpoint that it cannot read.
    let resumed = Run {
        epochs: 2,
        resume: Some(1),
        ..Run::default()
    };
    let panic = catch_unwind(AssertUnwindSafe(|| resumed.launch(folder.path())))
        .err()
        .unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("scaler's state is damaged"), "{message}");
}

/// The state's magic is 4 bytes long, its checksum 4; then come the version and the length of the text.
#[test]
fn the_state_of_a_later_release_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    Run {
        epochs: 1,
        ..Run::default()
    }
    .launch(folder.path());
    let file = folder.path().join("checkpoint/model-1.bpk");
    rewrite_state(&file, |words| {
        words[4] = 3;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sum = crc32(&bytes[8..12 + usize::from(words[5])]);
        (words[2], words[3]) = (sum as u16, (sum >> 16) as u16);
    });
    let origin = file.display().to_string();
    assert_eq!(
        check_checkpoint(folder.path(), 1),
        Err(AmpError::NewerRecord {
            origin,
            found: 3,
            supported: 2
        })
    );
    let error = scaled(1.0).try_load_file(&file).unwrap_err().to_string();
    assert!(
        error.contains("model-1.bpk") && error.contains("update burn-amp"),
        "{error}"
    );
}

/// CRC-32, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xEDB8_8320 } else { 0 }
        })
    })
}

/// As the settings of a run: the file's, until the program changes them.
#[test]
fn the_schedule_of_a_loaded_record_can_be_changed() {
    let stored = scaled(1024.0).into_record();
    let config = GradScalerConfig::new().with_growth_interval(7);
    let net = Net::f16(&Device::flex().autodiff());
    let mut loaded = Scaled::new(net, config.init().unwrap())
        .try_load_record(stored)
        .unwrap();
    assert_eq!(loaded.scaler().growth_interval(), 2000);
    loaded.scaler_mut().set_growth_interval(7).unwrap();
    assert_eq!(loaded.scaler().growth_interval(), 7);
}

/// What fails leaves no trace: the monitor tells of the state that is there.
#[test]
fn a_load_that_fails_is_not_shown() {
    let model = scaled(1024.0);
    let monitor = model.monitor();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.bpk");
    scaled(8.0).save_file(&file).unwrap();
    rewrite(&file, |tensors| {
        tensors.retain(|tensor| tensor.name != "head.bias")
    });
    let record = ModuleRecord::load(&file).unwrap();
    let error = model.try_load_record(record).unwrap_err().to_string();
    assert!(error.contains("head.bias"), "{error}");
    assert_eq!(monitor.loss_scale(), 1024.0);
}

#[test]
fn missing_and_truncated_files_are_errors_that_name_the_file() {
    for name in ["model", "optim", "scheduler"] {
        let folder = tempfile::tempdir().unwrap();
        Run {
            epochs: 1,
            ..Run::default()
        }
        .launch(folder.path());
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
        let error = check_checkpoint(folder.path(), 1).unwrap_err();
        assert!(
            matches!(&error, AmpError::DamagedRecord { origin: o, .. } if *o == origin),
            "{error}"
        );

        fs::remove_file(&file).unwrap();
        let error = check_checkpoint(folder.path(), 1).unwrap_err();
        assert!(
            matches!(&error, AmpError::RecordIo { origin: o, .. } if *o == origin),
            "{error}"
        );
    }
}

/// A run that resumes has only a panic for it; with these checkpointers it says which file it is.
#[test]
fn the_checkpointers_name_the_file_that_cannot_be_resumed_from() {
    let resumed = Run {
        epochs: 2,
        resume: Some(1),
        ..Run::default()
    };
    let launch = |run: &Run, folder: &Path| {
        let (model, optim, scheduler) = checkpointers(folder);
        run.training(folder)
            .with_custom_checkpointers(model, optim, scheduler)
            .launch(run.learner().0)
    };
    for name in ["none", "state", "model", "optim", "scheduler"] {
        let folder = tempfile::tempdir().unwrap();
        let first = Run {
            epochs: 1,
            ..Run::default()
        };
        launch(&first, folder.path());
        let of = if name == "state" { "model" } else { name };
        let file = folder.path().join(format!("checkpoint/{of}-1.bpk"));
        match name {
            "none" => {
                let model = launch(&resumed, folder.path()).model;
                assert_eq!(model.scaler().counters().steps(), 12);
                assert!(check_checkpoint(folder.path(), 2).unwrap().is_some());
                continue;
            }
            "state" => spoil(&file),
            _ => fs::write(&file, "not a record").unwrap(),
        }
        let run = || launch(&resumed, folder.path());
        let panic = catch_unwind(AssertUnwindSafe(run)).err().unwrap();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(&file.display().to_string()), "{message}");
        if name == "state" {
            assert!(message.contains("scaler's state is damaged"), "{message}");
        }
    }
}
