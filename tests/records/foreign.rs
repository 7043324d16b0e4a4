//! Files of another kind, of plain Burn, of other settings or of another model, and no files at all.

use crate::support::*;

/// A folder with one file of each kind.
fn files() -> TempDir {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut optim = adam();
    let small = Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(path("adam.bpk")).unwrap();
    optim.optimizer().save(path("plain_adam.bpk")).unwrap();
    optim.scaler().to_record().save(path("scaler.bpk")).unwrap();
    let mut optim = trained(momentum(), DType::F32, 0..3, &[]);
    optim.save(path("momentum.bpk")).unwrap();
    small.save_file(path("model.bpk")).unwrap();
    fs::write(path("text.bpk"), "epoch,loss\n1,0.5\n2,0.25\n").unwrap();
    fs::write(path("empty.bpk"), "").unwrap();
    fs::create_dir(path("folder.bpk")).unwrap();
    folder
}

/// Which optimizer refuses which file, and the error, which names the file too. Burn's own loader panics on some of these, and takes
/// others for an optimizer without state.
#[test]
fn to_an_optimizer() {
    let files = files();
    let (another, no_record) = ("another optimizer", "not the record of an optimizer");
    for (mut optim, file, variant, part) in [
        (momentum(), "adam", "ForeignRecord", another),
        (sgd(), "plain_adam", "ForeignRecord", another),
        (adam(), "momentum", "ForeignRecord", ""),
        (adam(), "scaler", "ForeignRecord", "that of a `GradScaler`"),
        (adam(), "model", "ForeignRecord", no_record),
        (sgd(), "model", "ForeignRecord", no_record),
        (adam(), "text", "DamagedRecord", ""),
        (adam(), "empty", "DamagedRecord", ""),
        // Without an extension it is looked for under the name that `save` gives it.
        (adam(), "missing", "RecordIo", "missing.bpk"),
        (adam(), "folder.bpk", "RecordIo", ""),
    ] {
        optim = trained(optim, DType::F32, 5..9, &[6]);
        let path = files.path().join(file);
        let error = refused(&mut optim, |optim| optim.load(&path));
        is_error(&error, variant, [part, path.to_str().unwrap()]);
        if variant != "ForeignRecord" {
            // Whoever reads it.
            assert_eq!(AmpRecord::load(&path).unwrap_err(), error);
        }
    }
}

#[test]
fn to_a_scaler() {
    let files = files();
    let load = |name: &str| AmpRecord::load(files.path().join(name));
    is_error(&load("model").unwrap_err(), "ForeignRecord", ["model"]);
    let mut scaler = GradScaler::new(at_scale(8.0)).unwrap();
    let before = scaler.bits();
    let error = scaler.load_record(load("plain_adam").unwrap());
    is_error(&error.unwrap_err(), "ForeignRecord", ["plain_adam.bpk"]);
    assert_eq!(scaler.bits(), before);
}

/// The same optimizer with other settings: nothing of the state is lost, used or not.
#[test]
fn the_state_of_other_settings() {
    let files = files();
    let mut optim = sgd();
    optim.load(files.path().join("momentum")).unwrap();
    let kept = state(optim.optimizer()).tensors;
    let velocities = kept.keys().filter(|name| name.contains("momentum"));
    assert_eq!((velocities.count(), kept.len()), (2, 2), "{kept:?}");

    let build = |amsgrad| scaled(AdamConfig::new().with_amsgrad(amsgrad).init());
    let mut optim = trained(build(true), DType::F32, 0..3, &[]);
    let mut without = build(false);
    without.from_bytes(optim.into_bytes().unwrap()).unwrap();
    assert_eq!(contents(&mut without), contents(&mut optim));

    // AdamW's state has Adam's names and meaning: Burn cannot tell them apart, and neither can we.
    let mut adam_w = scaled(AdamWConfig::new().init());
    adam_w.load(files.path().join("adam")).unwrap();
}

/// A type of one's own steps, and says what it lacks when it is to be stored.
#[test]
fn an_optimizer_without_records() {
    let files = files();
    let path = files.path().join("adam.bpk");
    let before = fs::read(&path).unwrap();
    let optim = scaled(Observed(AdamConfig::new().init(), drop));
    let mut optim = trained(optim, DType::F32, 0..3, &[1]);

    let error = optim.save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["`ModuleOptim::to_record`"]);
    assert_eq!(fs::read(&path).unwrap(), before);
    let record = optim.to_record();
    let refused = record.clone().into_optimizer().err();
    assert_eq!(refused, record.clone().into_bytes().err());

    let error = optim.load(&path).unwrap_err();
    let parts = ["`ModuleOptim::load_record`", path.to_str().unwrap()];
    is_error(&error, "ForeignRecord", parts);
    // Its scaler has a record of its own.
    let mut scaler = default_scaler();
    for record in [record, optim.scaler().to_record()] {
        scaler.load_record(record).unwrap();
        assert_eq!(scaler.counters(), optim.scaler().counters());
    }
}

/// To plain f32 training, by every way.
#[test]
fn burn_reads_our_file() {
    let (_folder, path) = place("optim.bpk");
    let mut scaled = adam();
    let small = Small::new(DType::F32).train(&mut scaled, 0..8, &[3]);
    scaled.save(&path).unwrap();
    let fresh = || AdamConfig::new().init();
    let loaded = [
        fresh().load_record(OptimizerRecord::load(&path).unwrap()),
        fresh().load(&path).unwrap(),
        fresh().from_bytes(scaled.into_bytes().unwrap()).unwrap(),
        fresh().load_record(scaled.to_record().into_optimizer().unwrap()),
    ];
    // All of them go on where the scaled one does, and save nothing of ours.
    let expected = small.clone().train(&mut scaled, 8..9, &[]);
    for mut plain in loaded {
        let grads = small.gradients(8, 1.0, false).into_params();
        let stepped = plain.step(0.1, small.clone(), grads);
        assert_eq!(parameters(&stepped), parameters(&expected));
        assert_eq!(state(&plain), state(scaled.optimizer()));
    }
}

/// And back, into a scaler far from its start, with settings of its own.
#[test]
fn we_read_burns_file() {
    let (_folder, path) = place("plain.bpk");
    let plain = trained(adam(), DType::F32, 0..1, &[]);
    let plain = plain.optimizer();
    plain.save(&path).unwrap();
    let fresh = GradScaler::new(at_scale(1024.0).with_growth_interval(2)).unwrap();
    let scaled = ScaledOptimizer::new(AdamConfig::new().init(), fresh.clone());
    let mut scaled = trained(scaled, DType::F32, 0..5, &[4]);
    assert_ne!(scaled.scaler().bits(), fresh.bits());

    let lines = logs(path.to_str().unwrap(), || scaled.load(&path).unwrap());
    let parts = ["WARN", "without loss scaling", "starts fresh", "1024"];
    says(only(&lines), parts);
    assert_eq!(scaled.scaler().bits(), fresh.bits());
    assert_eq!(scaled.scaler().last_outcome(), None);
    assert_eq!(state(scaled.optimizer()), state(plain));
}

/// A parameter may have any name.
#[test]
fn a_plain_record_of_a_parameter_with_our_name() {
    #[derive(Module, Debug)]
    struct Named {
        burn_amp: Linear,
    }

    let burn_amp = LinearConfig::new(3, 2).init(&flex());
    let (model, mut optim, mut loaded) = (Named { burn_amp }, adam(), adam());
    let grads = gradients(&model, 0, 1.0, FloatDType::F32);
    optim.step(0.1, model, grads);
    let plain = state(optim.optimizer());
    assert!(format!("{:?}", plain.metadata).contains("burn_amp.weight"));
    let bytes = optim.optimizer().into_bytes();
    loaded.from_bytes(bytes.unwrap()).unwrap();
    assert_eq!(state(loaded.optimizer()).tensors, plain.tensors);
}

/// The same model with other ids.
fn other(weight: u64, bias: u64) -> Small {
    let mut small = Small::new(DType::F32);
    small.weight.id = ParamId::from(weight);
    small.bias.id = ParamId::from(bias);
    small
}

/// All ids unknown, or one of two.
#[test]
fn a_window_of_another_model_stays_as_it_is() {
    for (id, unknown) in [(1, "2 of its 2 sums"), (1001, "1 of its 2 sums")] {
        let (small, stranger) = (Small::new(DType::F32), other(id, 2));
        let mut optim = adam().with_accumulation(3);
        small.clone().train(&mut optim, 0..2, &[]);
        let before = (contents(&mut optim), parameters(&stranger));
        let flushed = optim.clone().try_flush(0.1, stranger.clone());
        let of_its_own = stranger.gradients(2, 1.0, false);
        let stepped = optim.try_step(0.1, stranger.clone(), of_its_own);
        for failed in [flushed.unwrap_err(), stepped.unwrap_err()] {
            is_error(&failed.error, "ForeignRecord", [unknown, "`drop_window`"]);
        }
        assert_eq!((contents(&mut optim), parameters(&stranger)), before);
        // The model that it belongs to goes on.
        let stepped = small.clone().train(&mut optim, 2..3, &[]);
        assert_ne!(parameters(&stepped), parameters(&small));
    }
}

#[test]
fn an_optimizers_state_of_other_parameters_is_warned_of_once() {
    let (_folder, path) = place("optim.bpk");
    trained(adam(), DType::F32, 0..3, &[]).save(&path).unwrap();
    let steps = |stranger: Small| {
        let mut optim = adam();
        optim.load(&path).unwrap();
        stranger.train(&mut optim, 3..6, &[]);
    };
    for (id, unknown) in [(1, "of which 2 "), (1001, "of which 1 ")] {
        let parts = ["2 parameters, ", unknown, path.to_str().unwrap()];
        warns_once(parts, || steps(other(id, 2)));
    }
    no_warning(|| steps(other(1001, 1002)));
}
