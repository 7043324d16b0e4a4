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

/// Steps on gradients made by hand.
fn steps<O: ModuleOptim>(optim: &mut O, net: Net, range: Range<usize>) -> Net {
    range.fold(net, |net, step| {
        let grads = by_hand(&net, step);
        optim.step(0.01.into(), net, grads)
    })
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
        let [of_one, of_other] = [&expected, &found].map(|module| grads(module, step));
        expected = one.step(lr.clone(), expected, of_one);
        found = other.step(lr.clone(), found, of_other);
        assert!(parameters(&found) == parameters(&expected), "step {step}");
    }
    assert_eq!(state_of(other), state_of(one));
    found
}

/// In the names of `MasterWeights`, what is the inner optimizer's of a parameter in f32 is, too.
fn state_of<O: ModuleOptim>(optim: &O) -> Pack {
    fn plain<V>(all: BTreeMap<String, V>) -> BTreeMap<String, V> {
        let plain = |(name, value): (String, V)| (name.replace("inner.", ""), value);
        all.into_iter().map(plain).collect()
    }

    let mut pack = state(optim);
    pack.tensors = plain(pack.tensors);
    pack.scalars = plain(pack.scalars);
    pack
}
