//! `FusedSgd`, `FusedAdam` and `FusedAdamW` beside Burn's own optimizers.

mod captured;
mod follows;
mod groups;
mod matrix;
mod pending;
mod records;
mod run;
mod settings;

use crate::support::*;

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

fn nesterov() -> FusedSgd {
    let momentum = MomentumConfig::new().with_nesterov(true);
    FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum)))
}

/// Gradients of every parameter, made by hand: values that f16 holds, in `dtype`.
fn gradients<M: Module>(module: &M, step: usize, dtype: FloatDType) -> GradientsParams {
    burn_amp_tests::gradients(module, step, 0.125, dtype)
}

/// Such gradients in f32.
fn by_hand(net: &Net, step: usize) -> GradientsParams {
    gradients(net, step, FloatDType::F32)
}

/// Steps by both from the same module on: to the same bits, where it returns the module.
fn same_steps<M: Module, A: ModuleOptim, B: ModuleOptim>(
    (one, other): (&mut A, &mut B),
    lr: impl Into<ModuleLearningRate>,
    start: &M,
    range: Range<usize>,
    grads: impl Fn(&M, usize) -> GradientsParams,
) -> M {
    let lr = lr.into();
    let (mut expected, mut found) = (start.clone(), start.clone());
    for step in range {
        let stepped = grads(&expected, step);
        expected = one.step(lr.clone(), expected, stepped);
        let stepped = grads(&found, step);
        found = other.step(lr.clone(), found, stepped);
        assert!(parameters(&found) == parameters(&expected), "step {step}");
    }
    assert_eq!(state_of(other), state_of(one));
    found
}

/// In the names of `MasterWeights`, what is the inner optimizer's of a parameter in f32 is, too.
fn state_of<O: ModuleOptim>(optim: &O) -> Pack {
    let mut pack = state(optim);
    let plain = |name: String| name.replace("inner.", "");
    let tensors = pack.tensors.into_iter();
    pack.tensors = tensors
        .map(|(name, tensor)| (plain(name), tensor))
        .collect();
    let scalars = pack.scalars.into_iter();
    pack.scalars = scalars
        .map(|(name, scalar)| (plain(name), scalar))
        .collect();
    pack
}
