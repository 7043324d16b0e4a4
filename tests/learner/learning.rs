//! Runs that go well.

use burn::{
    module::Module,
    optim::AdamConfig,
    tensor::{DType, Device, Tensor},
    train::InferenceStep,
};
use burn_amp::{AmpError, MixedPrecision};

use crate::support::{Net, Run, loader, read_metric, samples, temp_dir, values};

/// In f16 if the device has it, with all metrics: the classes are learnt, every step is counted, the scale grows, and the
/// files say so.
#[test]
fn an_f16_run_learns() {
    let folder = temp_dir();
    let result = Run::default().launch(folder.path());
    assert!(result.error.is_none() && result.interrupted.is_none());

    let model = result.model;
    assert_eq!(model.scaler().counters().steps(), 24);
    // Of 24 clean steps, every fourth would double the scale, were there no overflow at 2^20 or so.
    let skipped = model.scaler().counters().skipped();
    let grown = f64::from(model.scaler().loss_scale()) / 65536.0;
    assert!(grown > 1.0, "{grown}, {skipped} skipped");

    let accuracy = read_metric(folder.path(), 4, "Accuracy");
    let last: f64 = accuracy
        .last()
        .unwrap()
        .trim_end_matches(",final")
        .parse()
        .unwrap();
    assert!(last > 95.0, "{last} % in {accuracy:?}");

    let scales = read_metric(folder.path(), 1, "Loss Scale");
    assert_eq!(
        scales[..6],
        ["65536", "65536", "65536", "131072", "131072", "131072"]
    );
    let norms = read_metric(folder.path(), 4, "Gradient Norm");
    assert_eq!(
        norms.len(),
        7,
        "one for each step and one for the epoch: {norms:?}"
    );
    for norm in norms {
        let norm: f64 = norm.split(',').next().unwrap().parse().unwrap();
        assert!(norm > 0.0 && norm < 10.0);
    }
}

/// In a loop of one's own a free `autocast` opens no scope, and the model would train in f32.
#[test]
fn a_dry_run_opens_the_scopes_that_a_learner_opens() {
    let (run, device) = (Run::default(), Device::default().autodiff());
    let amp = run.amp();
    let net = Net::new(&device).apply_reparameterization(amp.clone());
    let batches = loader(samples(8), None).to_device(&device);
    let batch = batches.iter().next().unwrap().unwrap();
    let check = || amp.check(&net, |m| InferenceStep::step(m, batch.clone()).loss);
    assert_eq!(check().map(drop), Err(AmpError::NoScope));
    let _learner = run.learner(&amp);
    check().unwrap();
}

/// In f32, a run without overflow is Burn's own, bit for bit: the same parameters after as many steps.
#[test]
fn an_f32_run_is_that_of_burn_without_scaling() {
    let run = Run::default();
    let folder = temp_dir();
    let amp = MixedPrecision::f32();
    let amp = amp.with_scaler(run.config).unwrap();
    let learner = run.learner(&amp);
    let scaled = run.training(folder.path()).launch(learner).model;
    assert_eq!(scaled.scaler().counters().steps(), 24);
    assert_eq!(scaled.scaler().counters().skipped(), 0);

    let folder = temp_dir();
    let learner = run.plain(AdamConfig::new().init());
    let plain = run.training(folder.path()).launch(learner).model;
    assert_eq!(values(&scaled), values(&plain));
}

/// The model that a run returns is used as the bare model is, and its record is the bare model's.
#[test]
fn the_result_is_the_model_itself() {
    let folder = temp_dir();
    let model = Run {
        epochs: 1,
        ..Run::default()
    }
    .launch(folder.path())
    .model;
    let device = Device::default();
    let features = Tensor::<2>::ones([1, 8], &device);
    let logits = model.forward(features.clone());
    assert_eq!(logits.dtype(), DType::F32);

    let file = folder.path().join("model.bpk");
    model.clone().into_record().save(&file).unwrap();
    for file in [file, folder.path().join("checkpoint/model-1.bpk")] {
        let bare = Net::new(&device).try_load_file(file).unwrap();
        assert_eq!(values(&bare), values(&model));
        let same = bare.forward(features.clone()).into_data();
        assert!(same == logits.clone().into_data());
    }
    assert_eq!(values(&model.clone().into_inner()), values(&model));
}

/// What does not depend on the loss scale does not cost it: bf16 runs without a scaler, and shows no metrics of it.
#[test]
fn bf16_runs_without_a_scaler() {
    let run = Run::default();
    let folder = temp_dir();
    let amp = MixedPrecision::bf16();
    if amp.check_device(&Device::default()).is_err() {
        return;
    }
    let learner = run.learner(&amp);
    let result = amp.training(run.training(folder.path())).launch(learner);
    assert!(result.error.is_none());
    assert_eq!(result.model.scaler().counters().steps(), 24);
    assert!(!folder.path().join("train/epoch-1/Loss_Scale.log").exists());
    let accuracy = read_metric(folder.path(), 4, "Accuracy");
    let last = accuracy.last().unwrap().trim_end_matches(",final");
    assert!(last.parse::<f64>().unwrap() > 95.0, "{accuracy:?}");
}
