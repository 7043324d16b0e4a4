//! `Scaled<M>` as a module: the model, and nothing else.

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::{
        LrSchedulerConfig,
        module_lr_scheduler::{ModuleLearningRate, ModuleLrSchedulerConfig},
    },
    module::{Module, ModuleVisitor, Param, ParamGroup, ParamId},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, MultiGradientsParams, SgdConfig},
    tensor::{Bool, Device, Int, Tensor},
    train::{
        ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim,
        TrainOutput, TrainStep,
    },
};
use burn_amp::{FusedAdam, MixedPrecision, PipelinedOptimizer, Scaled, ScaledOptimizer};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::support::{
    Batch, Net, Run, Values, loader, lr, parameters, poison, samples, temp_dir, values,
};

#[derive(Default)]
struct Paths {
    path: Vec<String>,
    found: Vec<(String, ParamId)>,
}

impl ModuleVisitor for Paths {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((self.path.join("."), param.id));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.found.push((self.path.join("."), param.id));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found.push((self.path.join("."), param.id));
    }
}

fn paths<M: Module>(module: &M) -> Vec<(String, ParamId)> {
    let mut paths = Paths::default();
    module.visit(&mut paths);
    assert!(paths.path.is_empty());
    paths.found
}

#[test]
fn paths_ids_and_records_are_those_of_the_model() {
    let net = Net::new(&Device::flex().autodiff());
    let amp = MixedPrecision::f16();
    let scaled = amp
        .learner(net.clone(), AdamConfig::new().init(), lr())
        .unwrap()
        .model();
    assert_eq!(paths(&scaled), paths(&net));
    assert_eq!(paths(&scaled)[0].0, "hidden.weight");
    assert_eq!(scaled.num_params(), net.num_params());
    assert_eq!(scaled.devices(), net.devices());
    assert_eq!(scaled.clone().into_record().len(), net.into_record().len());
    let group = ParamGroup::from_predicate("bias");
    assert_eq!(scaled.into_record_group(group).len(), 2);
}

/// A model that has the reparameterization already, by hand, trains as one that has not.
#[test]
fn a_model_may_be_reparameterized_before() {
    let run = Run::default();
    let models = [true, false].map(|before| {
        let amp = run.amp();
        let net = Net::new(&Device::default().autodiff());
        let net = match before {
            true => net.apply_reparameterization(amp.clone()),
            false => net,
        };
        let learner = amp.learner(net, AdamConfig::new().init(), lr()).unwrap();
        let folder = temp_dir();
        run.training(folder.path()).launch(learner).model
    });
    assert_eq!(values(&models[0]), values(&models[1]));
}

/// Groups and learning rates by path see the model's own paths.
#[test]
fn optimizer_groups_by_path_keep_working() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let before = parameters(&net);
    let still = Some(GradientClipping::Value(0.0));
    let optim = SgdConfig::new().init().with_group(
        ParamGroup::from_predicate("hidden.bias"),
        SgdConfig::new().build(),
        still,
    );
    let lr = ModuleLrSchedulerConfig::new(LrSchedulerConfig::Constant(0.5))
        .with_group(
            ParamGroup::from_predicate("head"),
            LrSchedulerConfig::Constant(0.0),
        )
        .init()
        .unwrap();
    let mut learner = MixedPrecision::f16().learner(net, optim, lr).unwrap();
    let batches = loader(samples(8), None).to_device(&device);
    for batch in batches.iter() {
        let grads = learner.train_step(batch.unwrap()).grads;
        learner.lr_step();
        learner.optimizer_step(grads);
    }
    let after = parameters(&learner.model());
    for (path, (_, values)) in &before {
        assert_eq!(path != "hidden.weight", values == &after[path].1, "{path}");
    }
}

/// A user's model that does something after each step.
#[derive(Module, Debug)]
struct Clipped {
    net: Net,
    #[module(skip)]
    calls: Arc<AtomicU64>,
}

const LIMIT: f32 = 0.3;

impl Clipped {
    fn clipped(mut self, weight: impl FnOnce(Self) -> Self) -> Self {
        self = weight(self);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let weight = self.net.head.weight;
        self.net.head.weight = weight
            .map(|weight| Tensor::from_inner(weight.inner().clamp(-LIMIT, LIMIT)).require_grad());
        self
    }
}

impl TrainStep for Clipped {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        self.clipped(|model| optim.step(lr, model, grads))
    }

    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        self.clipped(|model| optim.step_multi(lr, model, grads))
    }
}

impl InferenceStep for Clipped {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        InferenceStep::step(&self.net, batch)
    }
}

/// The model's own `optimize` is called with every step that is not skipped, and with no other.
#[test]
fn the_optimize_of_a_model_is_called() {
    for strategy in [
        None,
        Some(MultiDeviceOptim::OptimMainDevice),
        Some(MultiDeviceOptim::OptimSharded),
    ] {
        let own = OwnRun::launch(strategy, |amp, model| {
            amp.learner(model, AdamConfig::new().init(), lr()).unwrap()
        });
        assert_eq!(own.calls, own.stepped, "{strategy:?}");
        // A fused optimizer has to be told that there is one.
        let fused = OwnRun::launch(strategy, |amp, model| {
            let optim = ScaledOptimizer::new(fused(), amp).with_own_optimize();
            amp.learner(model, optim, lr()).unwrap()
        });
        assert_eq!(fused.calls, fused.stepped, "{strategy:?}");
        assert!(fused.values == own.values, "{strategy:?}");
    }
}

fn fused() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

/// What steps by itself trains as if the model had none.
#[test]
fn an_optimizer_that_steps_by_itself_does_not_call_it() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let calls = Arc::<AtomicU64>::default();
    let model = Clipped {
        net: Net::new(&device),
        calls: calls.clone(),
    };
    let mut own = amp.learner(model, fused(), lr()).unwrap();
    let mut plain = MixedPrecision::f16()
        .learner(Net::new(&device), fused(), lr())
        .unwrap();
    for batch in loader(samples(24), None).to_device(&device).iter() {
        let batch = batch.unwrap();
        let grads = own.train_step(batch.clone()).grads;
        own.lr_step();
        own.optimizer_step(grads);
        let grads = plain.train_step(batch).grads;
        plain.lr_step();
        plain.optimizer_step(grads);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert!(values(&own.model().net) == values(&plain.model()));

    // On a thread of its own, it cannot.
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp).with_own_optimize();
    let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let error = amp.learner(Net::new(&device), optim, lr());
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("with_own_optimize"), "{error}");
}

/// A model that panics in its own `optimize` has lost a step, and not the optimizer.
#[test]
fn a_panic_in_the_optimize_of_a_model_leaves_the_optimizer() {
    let device = Device::flex().autodiff();
    let trained = |panics: bool| {
        let model = Panicking {
            net: Net::new(&device),
            panics: Arc::new(panics.into()),
        };
        let mut learner = MixedPrecision::f16()
            .learner(model, AdamConfig::new().init(), lr())
            .unwrap();
        for batch in loader(samples(24), None).to_device(&device).iter() {
            let batch = batch.unwrap();
            learner.lr_step();
            if panics {
                let grads = learner.train_step(batch.clone()).grads;
                learner.model().panics.store(true, Ordering::Relaxed);
                let step = AssertUnwindSafe(|| learner.optimizer_step(grads));
                assert!(catch_unwind(step).is_err());
            }
            let grads = learner.train_step(batch).grads;
            learner.optimizer_step(grads);
        }
        values(&learner.model().net)
    };
    assert!(trained(true) == trained(false));
}

#[derive(Module, Debug)]
struct Panicking {
    net: Net,
    #[module(skip)]
    panics: Arc<AtomicBool>,
}

impl TrainStep for Panicking {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        TrainStep::step(&self.net, batch)
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        assert!(!self.panics.swap(false, Ordering::Relaxed));
        optim.step(lr, self, grads)
    }
}

impl InferenceStep for Panicking {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        InferenceStep::step(&self.net, batch)
    }
}

struct OwnRun {
    calls: u64,
    stepped: u64,
    values: Vec<Values>,
}

impl OwnRun {
    fn launch(
        strategy: Option<MultiDeviceOptim>,
        learner: impl FnOnce(&MixedPrecision, Clipped) -> Learner<Scaled<Clipped>>,
    ) -> Self {
        let mut run = Run {
            epochs: 2,
            ..Run::default()
        };
        poison(&mut run.samples, 24 + 9);
        let amp = run.amp();
        let model = Clipped {
            net: Net::new(&Device::flex().autodiff()),
            calls: Arc::default(),
        };
        let learner = learner(&amp, model);
        let folder = temp_dir();
        let mut training = run.training(folder.path());
        let mut steps = 12;
        if let Some(optim) = strategy {
            let devices = vec![Device::flex(), Device::flex()];
            let strategy = ExecutionStrategy::multi(devices, optim);
            training = training.with_training_strategy(strategy.into());
            steps = 6;
        }
        let model: Scaled<Clipped> = training.launch(learner).model;
        let counters = model.scaler().counters();
        assert_eq!((counters.steps(), counters.skipped()), (steps, 2));
        let largest = model.net.head.weight.val().abs().max().into_scalar::<f32>();
        assert_eq!(largest, LIMIT, "{strategy:?}");
        Self {
            calls: model.calls.load(Ordering::Relaxed),
            stepped: counters.stepped(),
            values: values(&model.net),
        }
    }
}
