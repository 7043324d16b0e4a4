//! The masters go where plain f32 parameters would go, bit for bit.

use super::support::*;

/// Steps plain parameters, and the same in half precision but for those that are kept.
fn compare_both(optims: (ModuleOptimizer, MasterWeights), dtype: FloatDType, keep: &[ParamGroup]) {
    use FloatDType::{BF16, F16, F32, F64};
    let (mut plain_optim, mut half_optim) = optims;
    let mut plain = net(&flex());
    let mut half = to_half(plain.clone(), dtype, keep);
    let start = parameters(&plain);
    // Gradients may be wide or narrow, as long as all parameters are alike.
    let dtypes = if keep.is_empty() {
        [F32, F16, BF16, F64]
    } else {
        [F32; 4]
    };

    for step in 0..12 {
        // In the end far below half an ulp of the parameters.
        let lr = 0.01 / (1 << step) as f64;
        let of_plain = gradients(&plain, step, 0.5, F32);
        let of_half = gradients(&half, step, 0.5, dtypes[step % 4]);
        plain = plain_optim.step(lr, plain, of_plain);
        half = half_optim.step(lr, half, of_half);

        // The parameters are the masters, rounded; those that are kept have none.
        let rounded = parameters(&to_half(plain.clone(), dtype, keep));
        assert_eq!(parameters(&half), rounded);
        assert_ne!(parameters(&to_full(half.clone())), parameters(&plain));
        for (path, (_, expected)) in parameters(&plain) {
            assert_ne!(start[&path].1, expected, "`{path}` stands still");
            let is_kept = rounded[&path].1.0 == DType::F32;
            let found = master(&half_optim, &half, &path);
            let expected = (!is_kept).then_some(expected);
            assert_eq!(found, expected, "step {step}: `{path}`");
        }
    }

    // Beside the masters, the state is the plain optimizer's under another name.
    let (mut actual, expected) = (state(&half_optim), state(&plain_optim));
    actual.tensors.retain(|name, _| !name.ends_with(".master"));
    assert_eq!(unwrapped(actual.tensors), expected.tensors);
    assert_eq!(unwrapped(actual.scalars), expected.scalars);
    assert_eq!(actual.metadata, expected.metadata);
}

fn unwrapped<V>(all: BTreeMap<String, V>) -> BTreeMap<String, V> {
    let unwrapped = |(name, value): (String, V)| (name.replace(".inner.", "."), value);
    all.into_iter().map(unwrapped).collect()
}

fn compare<O: Optimizer>(optim: O, dtype: FloatDType) {
    let optims = (optim.clone().into(), MasterWeights::new(optim));
    compare_both(optims, dtype, &[]);
}

#[test]
fn every_optimizer() {
    let (f16, bf16) = (FloatDType::F16, FloatDType::BF16);
    let (adam, sgd) = (AdamConfig::new, SgdConfig::new);
    compare(adam().build(), f16);
    compare(adam().with_amsgrad(true).build(), bf16);
    // Weight decay must see the master, not the rounded parameter.
    compare(AdamWConfig::new().with_weight_decay(0.1).build(), f16);
    let momentum = Some(MomentumConfig::new().with_nesterov(true));
    compare(sgd().with_momentum(momentum).build(), f16);
    compare(sgd().build(), bf16);
    compare(RmsPropConfig::new().build(), f16);
}

/// A part that stays in f32 is stepped as by the plain optimizer, without a master. Each group has its own optimizer, with masters, as a plain optimizer
/// with the same groups.
#[test]
fn groups_have_masters_too() {
    let (adam, sgd) = (AdamConfig::new().build(), SgdConfig::new().build());
    let biases = || ParamGroup::from_predicate("bias");
    let clipping = || Some(GradientClipping::Value(0.05));
    let norm = || GradientClipping::Norm(0.3);
    let plain = ModuleOptimizer::from(adam.clone()).with_grad_clipping(norm());
    let plain = plain.with_group(biases(), sgd.clone(), clipping());
    let half = MasterWeights::new(adam).with_grad_clipping(norm());
    let half = half.with_group(biases(), sgd, clipping());
    let kept = [ParamGroup::from_predicate("norm")];
    compare_both((plain, half), FloatDType::F16, &kept);
}
