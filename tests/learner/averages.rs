//! Averages of the weights in a Learner: taken at every step, kept in checkpoints, resumed bit for bit.

use burn::{
    lr_scheduler::linear::LinearLrSchedulerConfig,
    module::{Module, ModuleVisitor, Param, ParamGroup},
    optim::{AdamConfig, GradientsParams},
    store::ModuleRecord,
    tensor::{DType, Device, Tensor},
    train::{ExecutionStrategy, Learner, LearningResult, MultiDeviceOptim},
};
use burn_amp::{
    EmaConfig, LossStep, MasterWeights, Scaled, ScaledOptimizer, ScalerMonitor,
    train::check_checkpoint,
};
use burn_pack::{Reader, Writer};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    resume::{assert_same, shuffled_run},
    support::{Net, Run, loader, pack, parameters, poison},
};

const AVERAGED: [&str; 4] = ["head.bias", "head.weight", "hidden.bias", "hidden.weight"];

fn optimizer(run: &Run, ema: Option<EmaConfig>) -> ScaledOptimizer<burn::optim::ModuleOptimizer> {
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), run.config.init().unwrap());
    match ema {
        Some(ema) => optim.with_ema(ema).unwrap(),
        None => optim,
    }
}

fn learner(run: &Run, ema: Option<EmaConfig>) -> (Learner<Scaled<Net>>, ScalerMonitor) {
    let optim = optimizer(run, ema);
    let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let monitor = optim.monitor();
    let net = Net::f16(&Device::flex().autodiff());
    (optim.into_learner(net, lr), monitor)
}

fn launch(run: &Run, folder: &Path) -> LearningResult<Scaled<Net>> {
    let result = run.training(folder).launch(learner(run, Some(ema())).0);
    assert!(result.error.is_none());
    result
}

fn ema() -> EmaConfig {
    EmaConfig::new()
        .with_momentum(0.9)
        .with_overwrite_frequency(Some(7))
}

/// Bytes by path.
type Values = Vec<(String, Vec<u8>)>;

fn values<M: Module>(model: &M) -> Values {
    let values = parameters(model).into_iter();
    values
        .map(|(path, (_, (_, _, bytes)))| (path, bytes))
        .collect()
}

/// Parameters and averages of a model.
fn averaged(model: &Scaled<Net>) -> (Values, Values, u64) {
    let ema = model.ema().unwrap();
    let averages = ema.module(model.inner());
    (values(model.inner()), values(&averages), ema.updates())
}

/// `overwrite_frequency` and a skipped step included.
#[test]
fn a_learner_averages_as_a_loop_by_hand() {
    let mut run = Run::default();
    poison(&mut run.samples, 20);
    let folder = tempfile::tempdir().unwrap();
    let model = launch(&run, folder.path()).model;

    let device = Device::flex().autodiff();
    let mut net = Net::f16(&device);
    let mut lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let mut optim = optimizer(&run, Some(ema()));
    let batches = loader(run.samples.clone(), None).to_device(&device);
    for _ in 0..4 {
        for batch in batches.iter() {
            let (loss, _) = net.loss_step(batch.unwrap());
            let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &net);
            net = optim.step(lr.step(), net, grads);
        }
    }
    assert_eq!(model.ema().unwrap().updates(), 20);
    assert_eq!(optim.ema().unwrap().updates(), 20);
    assert!(values(model.inner()) == values(&net));
    let averages = values(&optim.ema().unwrap().module(&net));
    assert!(averages != values(&net));
    assert!(averaged(&model).1 == averages);
    assert!(values(&model.finalize()) == averages);

    let folder = tempfile::tempdir().unwrap();
    let plain = run.training(folder.path()).launch(learner(&run, None).0);
    assert!(plain.model.ema().is_none());
    let inner = values(plain.model.inner());
    assert!(values(&plain.model.finalize()) == inner);
}

#[test]
fn a_resumed_run_has_the_averages_of_the_uninterrupted_one() {
    for accumulation in [None, Some(4)] {
        let run = |epochs: usize, resume: Option<usize>| Run {
            epochs,
            resume,
            accumulation,
            ..shuffled_run()
        };
        let whole = tempfile::tempdir().unwrap();
        let uninterrupted = launch(&run(4, None), whole.path()).model;
        let parts = tempfile::tempdir().unwrap();
        let half = launch(&run(2, None), parts.path()).model;
        let stored = check_checkpoint(parts.path(), 2).unwrap().unwrap();
        assert_eq!(stored, half.scaler().to_record());
        let resumed = launch(&run(4, Some(2)), parts.path()).model;

        assert!(averaged(&resumed) == averaged(&uninterrupted));
        assert!(averaged(&resumed).2 > half.ema().unwrap().updates());
        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
        let names = pack(&parts.path().join("checkpoint/model-4.bpk")).tensors;
        for path in AVERAGED {
            let name = format!("burn_amp.ema.{path}");
            assert!(names.contains_key(&name), "{name} in {:?}", names.keys());
        }
    }
}

#[test]
fn averages_are_in_records_and_nowhere_else() {
    #[derive(Default)]
    struct Count(usize);

    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.0 += 1;
        }
    }

    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let model = launch(&run, folder.path()).model;
    let mut count = Count::default();
    model.visit(&mut count);
    assert_eq!(count.0, AVERAGED.len());
    assert_eq!(model.num_params(), model.inner().num_params());
    assert_eq!(model.clone().into_record().len(), 2 * AVERAGED.len() + 1);
    let group = ParamGroup::from_predicate("bias");
    assert_eq!(model.into_record_group(group).len(), 2);
}

#[test]
fn records_with_averages_and_without() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let model = launch(&run, folder.path()).model;
    let file = folder.path().join("checkpoint/model-1.bpk");
    let record = || ModuleRecord::load(&file).unwrap();

    // Into the bare model.
    let bare = Net::f16(&Device::flex().autodiff())
        .try_load_record(record().allow_unused(true))
        .unwrap();
    assert!(values(&bare) == values(model.inner()));

    // Into one that keeps no averages: refused, or left out on request.
    let plain = || learner(&run, None).0.model();
    let error = plain().try_load_record(record()).unwrap_err().to_string();
    for part in ["burn_amp.ema.head.bias", "with_ema", "allow_unused"] {
        assert!(error.contains(part), "{error}");
    }
    let loaded = plain()
        .try_load_record(record().allow_unused(true))
        .unwrap();
    assert_eq!(loaded.scaler().to_record(), model.scaler().to_record());
    assert!(values(loaded.inner()) == values(model.inner()));

    // Out of one that keeps none, and out of a bare one: the averages start fresh.
    let with = || learner(&run, Some(ema())).0.model();
    let loaded = with().try_load_record(record()).unwrap();
    assert!(averaged(&loaded) == averaged(&model));
    for other in [
        plain().into_record(),
        Net::f16(&Device::flex().autodiff()).into_record(),
    ] {
        let fresh = loaded.clone().try_load_record(other).unwrap();
        assert_eq!(fresh.ema().unwrap().updates(), 0);
        assert_eq!(fresh.ema().unwrap().parameters(), 0);
    }
}

/// Files that somebody has changed.
#[test]
fn averages_that_are_missing_or_of_another_shape_are_errors() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let folder = tempfile::tempdir().unwrap();
    launch(&run, folder.path());
    let file = folder.path().join("checkpoint/model-1.bpk");
    let change = |name: &str, change: fn(&mut Vec<burn_pack::Tensor>)| {
        let mut tensors = Reader::from_file(&file).unwrap().into_tensors().unwrap();
        change(&mut tensors);
        let other = folder.path().join(name);
        Writer::new(tensors).write_to_file(&other).unwrap();
        let error = learner(&run, Some(ema())).0.model().try_load_file(&other);
        error.unwrap_err().to_string()
    };
    let none = change("none.bpk", |tensors| {
        tensors.retain(|tensor| !tensor.name.starts_with("burn_amp.ema."))
    });
    assert!(none.contains("6 updates"), "{none}");
    let shape = change("shape.bpk", |tensors| {
        let find = |tensors: &[burn_pack::Tensor], name: &str| {
            tensors.iter().position(|t| t.name == name).unwrap()
        };
        let bias = find(tensors, "head.bias");
        let (_, dtype, shape, id, bytes) = tensors.remove(bias).into_parts().unwrap();
        let name = "burn_amp.ema.hidden.bias";
        tensors.remove(find(tensors, name));
        let copy = || burn_pack::Tensor::new(name.into(), dtype, shape.clone(), id, bytes.clone());
        tensors.push(copy());
        let mut own = copy();
        own.name = "head.bias".into();
        tensors.push(own);
    });
    assert!(
        shape.contains("burn_amp.ema.hidden.bias: shape mismatch"),
        "{shape}"
    );
}

/// A layer that was frozen when the checkpoint was written has no average, and one that is frozen now keeps its own.
#[test]
fn a_record_may_have_averages_of_some_parameters() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let head = || ParamGroup::from_predicate("head");
    let frozen = |freeze: bool| {
        let net = Net::f16(&Device::flex().autodiff());
        let net = if freeze {
            net.freeze_group(head())
        } else {
            net
        };
        let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
        optimizer(&run, Some(ema())).into_learner(net, lr)
    };
    for freeze in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let trained = run.training(folder.path()).launch(frozen(freeze)).model;
        let loaded = frozen(!freeze)
            .model()
            .try_load_record(trained.clone().into_record())
            .unwrap();
        let count = if freeze { 2 } else { 4 };
        assert_eq!(loaded.ema().unwrap().parameters(), count);
        assert!(averaged(&loaded) == averaged(&trained));
    }
}

#[test]
fn several_devices_average_alike() {
    let run = Run {
        epochs: 2,
        ..Run::default()
    };
    let models = [
        MultiDeviceOptim::OptimMainDevice,
        MultiDeviceOptim::OptimSharded,
    ]
    .map(|optim| {
        let devices = vec![Device::flex(), Device::flex()];
        let folder = tempfile::tempdir().unwrap();
        let strategy = ExecutionStrategy::multi(devices, optim);
        run.training(folder.path())
            .with_training_strategy(strategy.into())
            .launch(learner(&run, Some(ema())).0)
            .model
    });
    assert_eq!(models[0].ema().unwrap().updates(), 6);
    assert!(averaged(&models[0]) == averaged(&models[1]));
}

/// Averages of f16 parameters are f32, in memory and in a record.
#[test]
fn averages_of_half_parameters_keep_their_bits() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let learner = || {
        let optim = MasterWeights::new(AdamConfig::new().with_epsilon(1e-5).build()).init();
        let optim = ScaledOptimizer::new(optim, run.config.init().unwrap());
        let optim = optim.with_ema(EmaConfig::new()).unwrap();
        let net = Net::with_half_parameters(&Device::flex().autodiff());
        optim.into_learner(
            net,
            LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap(),
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let trained = run.training(folder.path()).launch(learner()).model;
    let file = folder.path().join("checkpoint/model-1.bpk");
    let loaded = learner().model().try_load_file(file).unwrap();
    let average = |model: &Scaled<Net>| {
        let weight = &model.inner().hidden.weight;
        model.ema().unwrap().get(weight).unwrap().into_data()
    };
    assert_eq!(average(&trained).dtype(), DType::F32);
    assert!(average(&trained) == average(&loaded));
    assert!(averaged(&trained) == averaged(&loaded));
    assert_eq!(trained.finalize().hidden.weight.val().dtype(), DType::F16);
}

/// An optimizer that has averaged before goes on with its averages.
#[test]
fn averages_go_with_the_optimizer() {
    let run = Run::default();
    let device = Device::flex().autodiff();
    let mut net = Net::f16(&device);
    let mut optim = optimizer(&run, Some(ema()));
    let batches = loader(run.samples.clone(), None).to_device(&device);
    for batch in batches.iter() {
        let (loss, _) = net.loss_step(batch.unwrap());
        let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &net);
        net = optim.step(0.05, net, grads);
    }
    let averages: BTreeMap<_, _> = values(&optim.ema().unwrap().module(&net))
        .into_iter()
        .collect();
    let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let model = optim.into_learner(net, lr).model();
    assert_eq!(model.ema().unwrap().updates(), 6);
    assert!(averaged(&model).1.into_iter().collect::<BTreeMap<_, _>>() == averages);
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Beside the checkpoint is the model that it has become with `finalize`.
#[test]
fn checkpoints_with_averages_of_every_release_load() {
    let mut found = 0;
    for folder in fs::read_dir(golden()).unwrap() {
        let folder = folder.unwrap().path();
        let file = folder.join("averaged.bpk");
        if !file.exists() {
            continue;
        }
        let model = learner(&shuffled_run(), Some(ema())).0.model();
        let model = model.try_load_file(&file).unwrap();
        assert_eq!(model.ema().unwrap().updates(), 5, "{}", file.display());
        let inner = values(model.inner());
        let finalized = Net::f16(&Device::flex().autodiff())
            .try_load_file(folder.join("finalized.bpk"))
            .unwrap();
        assert!(values(&finalized) != inner);
        assert!(values(&model.finalize()) == values(&finalized));
        found += 1;
    }
    assert!(found > 0);
}

#[test]
#[ignore = "writes files into the repository"]
fn write_golden_averages() {
    let run = Run {
        epochs: 1,
        ..shuffled_run()
    };
    let folder = tempfile::tempdir().unwrap();
    let model = launch(&run, folder.path()).model;
    let golden = golden().join(env!("CARGO_PKG_VERSION"));
    let file = folder.path().join("checkpoint/model-1.bpk");
    fs::copy(file, golden.join("averaged.bpk")).unwrap();
    model
        .finalize()
        .save_file(golden.join("finalized.bpk"))
        .unwrap();
}
