//! `Scaled<M>` as a module: the model, and nothing else. And models of a user's own: with an `optimize`, in bf16.

use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::support::*;

#[test]
fn paths_ids_and_records_are_those_of_the_model() {
    let net = net();
    let learner = with(|_| burns_adam())(&MixedPrecision::f16());
    let scaled = learner.unwrap().model();
    assert_eq!(parameters(&scaled), parameters(&net));
    assert_eq!(scaled.devices(), net.devices());
    let group = ParamGroup::from_predicate("bias");
    assert_eq!(scaled.into_record_group(group).len(), 2);
}

/// Groups and learning rates by path see the model's own paths.
#[test]
fn optimizer_groups_by_path_keep_working() {
    let still = Some(GradientClipping::Value(0.0));
    let [bias, head] = ["hidden.bias", "head"].map(ParamGroup::from_predicate);
    let sgd = SgdConfig::new();
    let optim = sgd.init().with_group(bias, sgd.build(), still);
    let lr = ModuleLrScheduler::new(0.5).with_group(head, 0.0);
    let mut learner = MixedPrecision::f16().learner(net(), optim, lr).unwrap();
    step(&mut learner, batches(&samples(8)).remove(0));
    let after = parameters(&learner.model());
    for (path, values) in parameters(&net()) {
        assert_eq!(path != "hidden.weight", values == after[&path], "{path}");
    }
}

const LIMIT: f32 = 0.3;

/// How often a step was over, and whether the next one panics.
#[derive(Clone, Default)]
struct Steps(Arc<AtomicU64>, Arc<AtomicBool>);

/// A user's model that does something after each step, or panics in its place.
fn clipped(Steps(calls, panics): Steps) -> Net {
    net().with_around(Arc::new(move |net, step| {
        assert!(!panics.swap(false, Ordering::Relaxed));
        let mut net = step(net);
        calls.fetch_add(1, Ordering::Relaxed);
        let clip = |weight: Tensor<2>| weight.inner().clamp(-LIMIT, LIMIT);
        let clip = |weight| Tensor::from_inner(clip(weight)).require_grad();
        net.head.weight = net.head.weight.map(clip);
        net
    }))
}

/// The model's own `optimize` is called with every step that is not skipped, and with no other. A fused optimizer has to be set so that
/// there is one: what steps by itself trains as if the model had none.
#[test]
fn the_optimize_of_a_model_is_called() {
    let optims: [fn(&MixedPrecision) -> LearnerOptimizer; 2] = [
        |amp| adam(amp).into(),
        |amp| (ScaledOptimizer::new(fused_adam(), amp).with_own_optimize()).into(),
    ];
    for (strategy, steps) in [(None, 12), (Some(WAYS[0]), 6), (Some(WAYS[1]), 6)] {
        let [burns, fused] = optims.map(|optim| {
            let run = Run::of(2).poisoned([24 + 9]).with_workers(strategy);
            let watch = Steps::default();
            let done = run.launch(|amp| amp.learner(clipped(watch.clone()), optim(amp), lr()));
            assert_eq!(done.steps(), (steps, 2));
            let weight = done.model.head.weight.val();
            let largest = weight.abs().max().into_scalar::<f32>();
            let found = (largest, watch.0.load(Ordering::Relaxed));
            assert_eq!(found, (LIMIT, steps - 2), "{strategy:?}");
            values(&done.model)
        });
        assert!(fused == burns, "{strategy:?}");
    }
    let watch = Steps::default();
    let own = Run::of(1).launch(|amp| amp.learner(clipped(watch.clone()), fused_adam(), lr()));
    assert_eq!(watch.0.load(Ordering::Relaxed), 0);
    assert!(values(&own.model) == values(&Run::of(1).launch(fused).model));
}

/// A model that panics in its own `optimize` has lost a step, and not the optimizer.
#[test]
fn a_panic_in_the_optimize_of_a_model_leaves_the_optimizer() {
    let [panicked, plain] = [true, false].map(|panics| {
        let (amp, watch) = (MixedPrecision::f16(), Steps::default());
        let learner = amp.learner(clipped(watch.clone()), burns_adam(), lr());
        let mut learner = learner.unwrap();
        for batch in batches(&samples(24)) {
            if panics {
                let grads = learner.train_step(batch.clone()).grads;
                watch.1.store(true, Ordering::Relaxed);
                assert!(quietly(|| learner.optimizer_step(grads)).is_err());
            }
            step(&mut learner, batch);
        }
        values(&learner.model())
    });
    assert!(panicked == plain);
}

/// A model that computes in its parameters' precision, without `autocast`.
pub fn without_autocast(net: Net) -> Net {
    net.with_output(Arc::new(|net, batch| {
        let features = batch.features.clone().cast(net.head.weight.dtype());
        net.output(net.forward(features).cast(DType::F32), batch)
    }))
}

/// With parameters in bf16.
pub fn half() -> Net {
    without_autocast(to_half(net(), FloatDType::BF16, &[]))
}

/// At a loss scale of 1. Burn sums the gradients of micro-batches as they are: in bf16, most digits of a sum are lost.
#[test]
fn master_weights_train_bf16_parameters_in_a_learner() {
    let scaler = at_scale(1.0).with_dynamic(false);
    let amp = MixedPrecision::bf16().with_scaler(scaler).unwrap();
    let optim = MasterWeights::new(AdamConfig::new().build());
    let learner = amp.learner(half(), optim, lr()).unwrap();
    let (model, batch) = (learner.model(), batches(&samples(8)).remove(0));
    let id = model.hidden.weight.id;
    let own = TrainStep::step(&*model, batch.clone()).grads;
    let own = own.get::<2>(id).unwrap();
    assert_eq!(own.dtype(), DType::BF16);
    let grads = TrainStep::step(&model, batch).grads;
    assert_eq!(grads.len(), 4);
    let wide = grads.get::<2>(id).unwrap();
    assert_eq!(wide.into_data(), own.cast(DType::F32).into_data());

    let done = Run::of(4).train(&temp_dir(), &amp, Ok(learner)).finished();
    assert_eq!(done.steps(), (24, 0));
    assert_eq!(done.model.hidden.weight.dtype(), DType::BF16);
    assert!(values(&done.model) != values(&half()));
    assert!(done.numbers(4, "Accuracy")[6] > 95.0);
}
