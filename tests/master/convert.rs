//! `to_half` and `to_full`.

use super::support::*;

fn half<M: Module>(module: M) -> M {
    to_half(module, FloatDType::F16, &[])
}

#[test]
fn all_but_the_kept_groups_are_converted() {
    let mut net = net(&flex());
    let norm = ParamGroup::from_predicate("norm");
    let head = ParamGroup::from_ids(vec![net.head.weight.id]);
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        for keep in [vec![], vec![norm.clone(), head.clone()]] {
            let mixed = to_half(net.clone(), dtype, &keep);
            for (path, (_, (found, ..))) in parameters(&mixed) {
                let is_kept = path.starts_with("norm") || path == "head.weight";
                let is_kept = is_kept && !keep.is_empty();
                let expected = if is_kept { DType::F32 } else { dtype.into() };
                assert_eq!(found, expected, "{path}");
            }
            // These values are exact in half precision, so the way back restores all.
            assert_eq!(parameters(&to_full(mixed)), parameters(&net));
        }
    }
    // What is not f32 to begin with: half precision is widened only.
    net.head.weight = net.head.weight.map(|t| t.cast(FloatDType::F64));
    net.norm.gamma = net.norm.gamma.map(|t| t.cast(FloatDType::BF16));
    for (path, (_, (dtype, ..))) in parameters(&to_full(net)) {
        let is_wide = path == "head.weight";
        let expected = if is_wide { DType::F64 } else { DType::F32 };
        assert_eq!(dtype, expected, "{path}");
    }
}

/// And ids, see above, and what trains, see below.
#[test]
fn the_device_stays() {
    let device = flex().gradient_checkpointing();
    let there = half(net(&device));
    for converted in [there.clone(), to_full(there)] {
        let weight = converted.head.weight.val();
        assert_eq!(weight.device(), device);
        let strategy = device.gradient_checkpointing_strategy();
        assert_eq!(weight.gradient_checkpointing_strategy(), strategy);
    }
}

/// Converted while frozen, or on a device without autodiff.
#[test]
fn what_does_not_train_can_be_trained_later() {
    let net = net(&flex());
    let (frozen, inference) = (half(net.clone().freeze()), half(net.valid()));
    for net in [&frozen, &to_full(frozen.clone()), &inference] {
        assert!(!net.head.weight.is_require_grad());
    }
    for net in [frozen.unfreeze(), inference.train()] {
        let input = Tensor::<2>::ones([2, 6], (&flex(), DType::F16));
        let loss = net.forward(input).cast(FloatDType::F32).square().mean();
        let grads = loss.backward();
        assert!(net.hidden.weight.grad(&grads).is_some());
        assert!(net.norm.gamma.grad(&grads).is_some());
    }
}

/// A parameter is lazily initialized by Burn: the conversion makes the values that f32 would have got. A column-major Linear transposes at load
/// and save, which the conversion must not lose.
#[test]
fn values_are_rounded_to_nearest_and_parameter_mappers_stay() {
    let config = LinearConfig::new(3, 2).with_layout(LinearLayout::Col);
    let init = || -> Linear { config.init(&Device::flex()) };
    let linear = init();
    let half = half(linear.clone());
    let expected = linear.weight.val().cast(FloatDType::F16).to_data();
    assert_eq!(half.weight.val().to_data(), expected);
    let loaded = init().load_record(half.clone().into_record());
    assert_eq!(parameters(&loaded), parameters(&half));
    assert_eq!(loaded.weight.val().dtype(), DType::F16);
}
