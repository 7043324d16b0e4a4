//! `Scaled<M>` as a module: the model as it is, and one buffer that nothing but a record changes.

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::{LrSchedulerConfig, module_lr_scheduler::ModuleLrSchedulerConfig},
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, ParamId, Quantizer},
    optim::{GradientsParams, SgdConfig},
    tensor::{
        Device, FloatDType, Int, Tensor,
        quantization::{Calibration, QuantScheme},
    },
};
use burn_amp::{GradScaler, GradScalerConfig, LossStep, MixedPrecision, Scaled, ScaledOptimizer};

use crate::support::{Net, loader, parameters, samples};

fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_growth_interval(3);
    let mut scaler = config.init().unwrap();
    scaler.set_loss_scale(1024.0).unwrap();
    scaler.set_growth_tracker(2).unwrap();
    scaler
}

fn scaled() -> Scaled<Net> {
    Scaled::new(Net::f16(&Device::flex().autodiff()), scaler())
}

#[derive(Default)]
struct Paths {
    path: Vec<String>,
    floats: Vec<(String, ParamId)>,
    others: Vec<String>,
}

impl ModuleVisitor for Paths {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.floats.push((self.path.join("."), param.id));
    }

    fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
        self.others.push(self.path.join("."));
    }
}

#[test]
fn paths_and_ids_are_those_of_the_model() {
    let scaled = scaled();
    let (mut outer, mut inner) = (Paths::default(), Paths::default());
    scaled.visit(&mut outer);
    scaled.inner().visit(&mut inner);
    assert_eq!(outer.floats, inner.floats);
    assert_eq!(outer.floats[0].0, "hidden.weight");
    assert_eq!(
        (outer.others, inner.others),
        (vec!["burn_amp.scaler".to_string()], vec![])
    );
    assert_eq!(outer.path, Vec::<String>::new());
    assert_eq!(scaled.num_params(), scaled.inner().num_params());
    assert_eq!(scaled.devices(), scaled.inner().devices());
}

/// Groups and learning rates by path see the model's own paths.
#[test]
fn optimizer_groups_by_path_keep_working() {
    let device = Device::flex().autodiff();
    let net = Net::f16(&device);
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
    let mut learner = ScaledOptimizer::new(optim, scaler()).into_learner(net, lr);
    let batches = loader(samples(8), None).to_device(&device);
    for batch in batches.iter() {
        let grads = learner.train_step(batch.unwrap()).grads;
        learner.lr_step();
        learner.optimizer_step(grads);
    }
    let after = parameters(learner.model().inner());
    for (path, (_, values)) in &before {
        assert_eq!(path != "hidden.weight", values == &after[path].1, "{path}");
    }
}

struct ToHalf;

impl ModuleMapper for ToHalf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(FloatDType::F16))
    }
}

struct Spoil;

impl ModuleMapper for Spoil {
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| tensor.mul_scalar(3))
    }
}

/// Casts, freezing, quantization, moves, even a mapper of integers: the scaler's state stays.
#[test]
fn nothing_but_a_record_changes_the_state() {
    let device = Device::flex().autodiff();
    let plain = || Scaled::new(Net::new(FloatDType::F32, &device), scaler());
    let scheme = QuantScheme::default();
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    let changed = [
        plain().map(&mut ToHalf),
        plain().map(&mut Spoil),
        plain().freeze(),
        plain().no_grad().unfreeze(),
        plain().valid(),
        plain().valid().train(),
        plain().fork(&device),
        plain().to_device(&Device::flex()),
        plain().apply_reparameterization(MixedPrecision::f16()),
        plain()
            .apply_reparameterization(MixedPrecision::f16())
            .materialize(),
        plain().valid().quantize_weights(&mut quantizer),
    ];
    for (index, model) in changed.into_iter().enumerate() {
        assert_eq!(
            model.scaler().to_record(),
            scaler().to_record(),
            "change {index}"
        );
        let fresh = Scaled::new(
            model.inner().clone(),
            GradScalerConfig::new().init().unwrap(),
        );
        let reloaded = fresh.try_load_record(model.clone().into_record()).unwrap();
        assert_eq!(
            reloaded.scaler().to_record(),
            scaler().to_record(),
            "change {index}"
        );
    }
}

/// Burn clones the model at every step: what happens to one is nothing to the other.
#[test]
fn a_clone_has_a_scaler_of_its_own() {
    let device = Device::flex().autodiff();
    let (mut optim, mut other) = (SgdConfig::new().init(), SgdConfig::new().init());
    let model = Scaled::new(Net::f16(&device), scaler());
    let batches = loader(samples(8), None).to_device(&device);
    let batch = batches.iter().next().unwrap().unwrap();
    let grads = || {
        let (loss, _) = model.inner().loss_step(batch.clone());
        GradientsParams::from_grads(model.scaler().scale(loss).backward(), model.inner())
    };
    use burn::train::TrainStep;
    let stepped = model.clone().optimize(&mut optim, 0.1.into(), grads());
    assert_eq!(model.scaler().to_record(), scaler().to_record());
    assert_eq!(stepped.scaler().loss_scale(), 2048.0);
    let again = model.clone().optimize(&mut other, 0.1.into(), grads());
    assert_eq!(stepped.scaler().to_record(), again.scaler().to_record());
    assert_eq!(parameters(&stepped), parameters(&again));
}
