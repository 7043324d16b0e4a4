//! `Scaled<M>` as a module: the model, and nothing else.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::support::*;

#[test]
fn paths_ids_and_records_are_those_of_the_model() {
    let net = net();
    let amp = MixedPrecision::f16();
    let learner = amp.learner(net.clone(), AdamConfig::new().init(), lr());
    let scaled = learner.unwrap().model();
    assert_eq!(parameters(&scaled), parameters(&net));
    assert!(parameters(&scaled).contains_key("hidden.weight"));
    assert_eq!(scaled.num_params(), net.num_params());
    assert_eq!(scaled.devices(), net.devices());
    let bare = Net::new(&Device::default()).load_record(scaled.clone().into_record());
    assert_eq!(stored(&bare), stored(&net));
    let group = ParamGroup::from_predicate("bias");
    assert_eq!(scaled.into_record_group(group).len(), 2);
}

/// A model that has the reparameterization already, by hand, trains as one that has not.
#[test]
fn a_model_may_be_reparameterized_before() {
    let run = Run::default();
    let amp = run.amp();
    let net = net().apply_reparameterization(amp.clone());
    let learner = amp.learner(net, AdamConfig::new().init(), lr());
    let before = run.train(&temp_dir(), &amp, learner);
    assert_eq!(values(&before.model), values(&run.launch().model));
}

/// Groups and learning rates by path see the model's own paths.
#[test]
fn optimizer_groups_by_path_keep_working() {
    let net = net();
    let before = parameters(&net);
    let still = Some(GradientClipping::Value(0.0));
    let [bias, head] = ["hidden.bias", "head"].map(ParamGroup::from_predicate);
    let sgd = SgdConfig::new();
    let optim = sgd.init().with_group(bias, sgd.build(), still);
    let lr = ModuleLrScheduler::new(0.5).with_group(head, 0.0);
    let mut learner = MixedPrecision::f16().learner(net, optim, lr).unwrap();
    step(&mut learner, batches(&samples(8)).remove(0));
    let after = parameters(&learner.model());
    for (path, (_, values)) in &before {
        assert_eq!(path != "hidden.weight", values == &after[path].1, "{path}");
    }
}

/// A user's model that does something after each step, or panics in its place.
#[derive(Module, Debug)]
struct Clipped {
    net: Net,
    #[module(skip)]
    calls: Arc<AtomicU64>,
    #[module(skip)]
    panics: Arc<AtomicBool>,
}

const LIMIT: f32 = 0.3;

impl Own for Clipped {
    fn output(&self, batch: Batch) -> ClassificationOutput {
        InferenceStep::step(&self.net, batch)
    }

    fn around(self, step: impl FnOnce(Self) -> Self) -> Self {
        assert!(!self.panics.swap(false, Ordering::Relaxed));
        let mut model = step(self);
        model.calls.fetch_add(1, Ordering::Relaxed);
        let clip = |weight: Tensor<2>| weight.inner().clamp(-LIMIT, LIMIT);
        let clip = |weight| Tensor::from_inner(clip(weight)).require_grad();
        model.net.head.weight = model.net.head.weight.map(clip);
        model
    }
}

fn clipped() -> Model<Clipped> {
    let (net, calls, panics) = (net(), Arc::default(), Arc::default());
    let own = Clipped { net, calls, panics };
    Model { own }
}

/// The model's own `optimize` is called with every step that is not skipped, and with no other. A fused optimizer has to be set so that
/// there is one.
#[test]
fn the_optimize_of_a_model_is_called() {
    let optims: [fn(&MixedPrecision) -> LearnerOptimizer; 2] = [
        |amp| adam(amp).into(),
        |amp| (ScaledOptimizer::new(fused(), amp).with_own_optimize()).into(),
    ];
    for (strategy, steps) in [(None, 12), (Some(WAYS[0]), 6), (Some(WAYS[1]), 6)] {
        let [burns, fused] = optims.map(|optim| {
            let run = Run::of(2).poisoned([24 + 9]).with_workers(strategy);
            let done = run.launch_with(|amp| amp.learner(clipped(), optim(amp), lr()));
            assert_eq!(done.steps(), (steps, 2));
            let Clipped { net, calls, .. } = &done.model.own;
            let largest = net.head.weight.val().abs().max().into_scalar::<f32>();
            let found = (largest, calls.load(Ordering::Relaxed));
            assert_eq!(found, (LIMIT, steps - 2), "{strategy:?}");
            values(&done.model)
        });
        assert!(fused == burns, "{strategy:?}");
    }
}

/// What steps by itself trains as if the model had none.
#[test]
fn an_optimizer_that_steps_by_itself_does_not_call_it() {
    let run = Run::of(1);
    let own = run.launch_with(|amp| amp.learner(clipped(), fused(), lr()));
    assert_eq!(own.model.own.calls.load(Ordering::Relaxed), 0);
    let plain = run.launch_with(crate::fused::learner);
    assert!(values(&own.model) == values(&plain.model));
}

/// A model that panics in its own `optimize` has lost a step, and not the optimizer.
#[test]
fn a_panic_in_the_optimize_of_a_model_leaves_the_optimizer() {
    let [panicked, plain] = [true, false].map(|panics| {
        let amp = MixedPrecision::f16();
        let learner = amp.learner(clipped(), AdamConfig::new().init(), lr());
        let mut learner = learner.unwrap();
        for batch in batches(&samples(24)) {
            if panics {
                let grads = learner.train_step(batch.clone()).grads;
                learner.model().own.panics.store(true, Ordering::Relaxed);
                assert!(quietly(|| learner.optimizer_step(grads)).is_err());
            }
            step(&mut learner, batch);
        }
        values(&learner.model())
    });
    assert!(panicked == plain);
}
