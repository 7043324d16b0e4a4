//! Every optimizer of Burn, and one of a user's own: with a scale that is a power of two, parameters and state
//! are at every step, bit for bit, those of a plain run of the finite steps. Those that are fused too are in `fused/follows.rs`.

use burn::optim::{
    AdaGradConfig, AdafactorConfig, Adam, AdanConfig, LambConfig, LionConfig, MuonConfig,
};

use crate::support::*;

/// An optimizer that a user of Burn might write: Adam, which maximizes.
#[derive(Clone)]
struct Ascent(Adam);

impl Optimizer for Ascent {
    type State<const D: usize> = <Adam as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        self.0.step(lr, tensor, -grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Adam::to_device(state, device)
    }
}

/// Small enough to clip every gradient of the model.
const CLIP_NORM: GradientClipping = GradientClipping::Norm(0.01);
const CLIP_VALUE: GradientClipping = GradientClipping::Value(0.002);

/// Alone, with clipping by norm and by value: each gives another trajectory, and each follows its plain run.
fn check_alone(net: &Net, optimizer: impl Optimizer) {
    let plain = ModuleOptimizer::from(optimizer);
    let end = |optimizer| compare_with_plain(net, optimizer, 0.01);
    let by_norm = end(plain.clone().with_grad_clipping(CLIP_NORM));
    let by_value = end(plain.clone().with_grad_clipping(CLIP_VALUE));
    let plain = end(plain);
    assert!(plain != by_norm, "clipping by norm did nothing");
    assert!(plain != by_value, "clipping by value did nothing");
}

/// For the weights of two layers, with their own clipping and learning rate; plain SGD for the rest.
fn check_in_group(net: &Net, optimizer: impl Optimizer) {
    let weights = ParamGroup::from_paths(vec!["hidden.weight", "head.weight"]);
    let fallback = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let optimizer = ModuleOptimizer::from(fallback.build())
        .with_grad_clipping(CLIP_NORM)
        .with_group(weights.clone(), optimizer, Some(CLIP_VALUE));
    let mut lr = ModuleLrScheduler::new(0.05).with_group(weights, 0.02);
    compare_with_plain(net, optimizer, lr.step());
}

macro_rules! every_optimizer {
    ($($name:ident: $optimizer:expr,)+) => {
        $(#[test]
        fn $name() {
            let net = Net::full(&flex());
            check_alone(&net, $optimizer);
            check_in_group(&net, $optimizer);
        })+
    };
}

every_optimizer! {
    adagrad: AdaGradConfig::new().with_lr_decay(0.1).build(),
    rmsprop: RmsPropConfig::new().build(),
    rmsprop_centered: RmsPropConfig::new().with_centered(true).build(),
    adan: AdanConfig::new().with_weight_decay(0.1).build(),
    lion: LionConfig::new().with_weight_decay(0.1).build(),
    lamb: LambConfig::new().with_weight_decay(0.1).build(),
    adafactor: AdafactorConfig::new().build(),
    users_own: Ascent(AdamConfig::new().build()),
}

#[test]
fn muon() {
    let muon = MuonConfig::new().build();
    check_alone(&Net::matrices(&flex()), muon.clone());
    check_in_group(&Net::full(&flex()), muon);
}

/// On the device that the features choose, too.
#[test]
fn adam_on_the_default_device() {
    compare_with_plain(&Net::full(&device()), AdamConfig::new().init(), 0.01);
}
