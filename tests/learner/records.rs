//! Records of a `Scaled` model and of a bare one, whole and damaged.

use burn::{module::Module, store::ModuleRecord, tensor::Device};
use burn_amp::{AmpError, GradScalerConfig, Scaled, train::check_checkpoint};
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
    rewrite(path, |tensors| {
        let index = tensors
            .iter()
            .position(|tensor| tensor.name == "burn_amp.scaler")
            .unwrap();
        let (name, dtype, shape, id, bytes) = tensors.remove(index).into_parts().unwrap();
        let mut bytes = bytes.to_vec();
        bytes[100] ^= 1;
        let bytes = burn::tensor::Bytes::from_bytes_vec(bytes);
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
