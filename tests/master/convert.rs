//! `to_half` and `to_full`.

use super::support::*;

fn dtypes(net: &Net) -> Vec<(String, DType)> {
    let all = parameters(net).into_iter();
    all.map(|(path, (_, (dtype, ..)))| (path, dtype)).collect()
}

#[test]
fn all_but_the_kept_groups_are_converted() {
    let net = Net::new(&Device::flex().autodiff());
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let half = DType::from(dtype);
        let all = to_half(net.clone(), dtype, &[]);
        assert!(dtypes(&all).iter().all(|(_, dtype)| *dtype == half));

        let keep = [
            ParamGroup::from_predicate("norm"),
            ParamGroup::from_ids(vec![net.head.weight.id]),
        ];
        let mixed = to_half(net.clone(), dtype, &keep);
        for (path, dtype) in dtypes(&mixed) {
            let kept = path.starts_with("norm") || path == "head.weight";
            assert_eq!(dtype, if kept { DType::F32 } else { half }, "{path}");
        }
        // These values are exact in half precision, so the way back restores all.
        assert_eq!(parameters(&to_full(mixed)), parameters(&net));
    }
}

#[test]
fn ids_trainability_and_device_stay() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let mut net = Net::new(&device);
    net.hidden = net.hidden.no_grad();
    let there = to_half(net.clone(), FloatDType::F16, &[]);
    for converted in [there.clone(), to_full(there)] {
        let (before, after) = (parameters(&net), parameters(&converted));
        assert!(before.keys().eq(after.keys()));
        for (path, (id, _)) in before {
            assert_eq!(after[&path].0, id, "{path}");
        }
        assert!(!converted.hidden.weight.is_require_grad());
        assert!(converted.head.weight.is_require_grad());
        for tensor in [converted.hidden.weight.val(), converted.head.weight.val()] {
            assert_eq!(tensor.device(), device);
            let strategy = device.gradient_checkpointing_strategy();
            assert_eq!(tensor.gradient_checkpointing_strategy(), strategy);
        }
    }
}

/// Converted while frozen, or on a device without autodiff.
#[test]
fn what_does_not_train_can_be_trained_later() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let half = |net| to_half(net, FloatDType::F16, &[]);
    let (frozen, inference) = (half(net.clone().freeze()), half(net.valid()));
    assert!(!frozen.head.weight.is_require_grad());
    assert!(!inference.head.weight.is_require_grad());
    for net in [frozen.unfreeze(), inference.train()] {
        assert_eq!(net.head.weight.val().dtype(), DType::F16);
        let input = Tensor::<2>::ones([2, 6], (&device, DType::F16));
        let loss = net.forward(input).cast(FloatDType::F32).square().mean();
        let grads = loss.backward();
        assert!(net.hidden.weight.grad(&grads).is_some());
        assert!(net.norm.gamma.grad(&grads).is_some());
    }
}

/// A column-major Linear transposes at load and save, which the conversion must not lose.
#[test]
fn parameter_mappers_stay() {
    let device = Device::flex();
    let config = LinearConfig::new(3, 2).with_layout(LinearLayout::Col);
    let init = || config.init(&device);
    let linear: Linear = init();
    let half = to_half(linear.clone(), FloatDType::F16, &[]);
    let loaded = init().load_record(half.clone().into_record());
    assert_eq!(parameters(&loaded), parameters(&half));
    assert_eq!(loaded.weight.val().dtype(), DType::F16);
}

/// What is not f32 to begin with.
#[test]
fn to_full_widens_half_precision_only() {
    let device = Device::flex().autodiff();
    let mut net = Net::new(&device);
    net.head.weight = net.head.weight.map(|t| t.cast(FloatDType::F64));
    net.norm.gamma = net.norm.gamma.map(|t| t.cast(FloatDType::BF16));
    let full = to_full(net);
    for (path, dtype) in dtypes(&full) {
        let wide = path == "head.weight";
        let expected = if wide { DType::F64 } else { DType::F32 };
        assert_eq!(dtype, expected, "{path}");
    }
}

/// A parameter is lazily initialized by Burn: the conversion makes the values that f32 would have got.
#[test]
fn values_are_rounded_to_nearest() {
    let device = Device::flex();
    let embedding = EmbeddingConfig::new(5, 4).init(&device);
    let half = to_half(embedding.clone(), FloatDType::F16, &[]);
    let expected = embedding.weight.val().cast(FloatDType::F16).to_data();
    assert_eq!(half.weight.val().to_data(), expected);
    let tokens = Tensor::<2, Int>::from_data([[0, 4]], &device);
    assert_eq!(half.forward(tokens).dtype(), DType::F16);
}

/// `MixedPrecision` may be on the model already. Half-precision parameters do not train in a scope: they are refused there.
#[test]
fn a_model_with_mixed_precision_can_be_converted() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::bf16();
    let net = Net::new(&device).apply_reparameterization(amp.clone());
    let half = to_half(net, FloatDType::F16, &[]);
    assert_eq!(half.head.weight.base().dtype(), DType::F16);
    assert_eq!(half.head.weight.val().dtype(), DType::F16);

    let input = Tensor::<2>::ones([2, 4], &device);
    let forward = |net: &Net| amp.try_autocast(input.clone(), |x| net.head.forward(x));
    let expected = AmpError::HalfPrecisionLeaf {
        parameter: "head.weight".to_string(),
        dtype: DType::F16,
    };
    assert_eq!(forward(&half).unwrap_err(), expected);
    // For inference they are as good as any, and `to_full` makes them train again.
    assert_eq!(forward(&half.valid()).unwrap().dtype(), DType::F32);
    assert!(forward(&to_full(half)).unwrap().is_tracked());
}
