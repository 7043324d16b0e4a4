//! Parameters that stay in f32, and parts that run in it.

use burn::{
    module::{Module, ParamGroup},
    nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig},
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{MixedPrecision, in_f32};

use crate::support::{check, fill, gradients, panic_message, tensor, values};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(6, 4).init(device),
            norm: LayerNormConfig::new(4).init(device),
            last: LinearConfig::new(4, 3).init(device),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = in_f32(self.first.forward(input), |x| self.norm.forward(x));
        self.last.forward(hidden)
    }
}

fn dtypes(net: &Net) -> [DType; 4] {
    [
        net.first.weight.val().dtype(),
        net.norm.gamma.val().dtype(),
        net.last.weight.val().dtype(),
        net.last.bias.as_ref().unwrap().val().dtype(),
    ]
}

#[test]
fn groups_add_up() {
    let net = Net::new(&Device::flex());
    let (f32, f16) = (DType::F32, DType::F16);
    let apply =
        |precision: MixedPrecision| dtypes(&net.clone().apply_reparameterization(precision));
    let norm = ParamGroup::from_predicate("norm");
    let bias = ParamGroup::from_path("last.bias");
    let weight = ParamGroup::from_ids(vec![net.last.weight.id]);

    assert_eq!(apply(MixedPrecision::f16()), [f16; 4]);
    let precision = MixedPrecision::f16().keep(norm);
    assert_eq!(apply(precision.clone()), [f16, f32, f16, f16]);
    let precision = precision.keep(bias).keep(weight);
    assert_eq!(apply(precision), [f16, f32, f32, f32]);
    let all = MixedPrecision::f16().keep(ParamGroup::all());
    assert_eq!(apply(all), [f32; 4]);
}

#[test]
fn a_part_in_f32_trains_with_the_rest() {
    check(Net::new, &["norm"], |net, precision, device| {
        net.forward(precision.cast(tensor([5, 6], device)))
    });
}

/// The values of a kept parameter are not rounded on the way: `gamma` of 1 + 2^-20 shows.
#[test]
fn a_kept_parameter_keeps_its_digits() {
    let device = Device::flex();
    let small = 1.0 / f32::from(1024u16) / 1024.0;
    let mut norm = LayerNormConfig::new(4).init(&device);
    norm.gamma = norm.gamma.map(|gamma| gamma.add_scalar(small));
    let f16 = MixedPrecision::f16();
    let seen = |precision| {
        let norm = norm.clone().apply_reparameterization(precision);
        values(norm.gamma.val())
    };
    assert_eq!(seen(f16.clone()), [1.0; 4]);
    assert_eq!(seen(f16.keep(ParamGroup::all())), [1.0 + small; 4]);
}

#[test]
fn in_f32_widens_and_comes_back() {
    let device = Device::flex();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let input = Tensor::<2>::ones([2, 3], (&device, dtype));
        let mut inside = None;
        let output: Tensor<1> = in_f32(input, |x| {
            inside = Some(x.dtype());
            x.flatten(0, 1)
        });
        let wide = if dtype == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        assert_eq!(inside, Some(wide), "{dtype:?}");
        assert_eq!(output.dtype(), dtype);
        assert_eq!(output.dims(), [6]);
    }
}

/// 300 squared is no f16; its gradient comes back through the casts.
#[test]
fn in_f32_computes_what_f16_cannot() {
    let device = Device::flex().autodiff();
    let input = Tensor::<1>::full([3], 300.0, (&device, DType::F16)).require_grad();
    let mean = |x: Tensor<1>| x.square().sum().div_scalar(1000.0);
    assert!(values(mean(input.clone()))[0].is_infinite());
    let output = in_f32(input.clone(), mean);
    assert_eq!(values(output.clone()), [270.0]);
    let grads = output.cast(FloatDType::F32).backward();
    let grad = input.grad(&grads).unwrap();
    assert_eq!(grad.dtype(), DType::F16);
    let error = values(grad)
        .iter()
        .map(|g| (g - 0.6).abs())
        .fold(0.0, f32::max);
    assert!(error < 1e-3, "off by {error}");
}

/// What is kept must be fed f32: forgetting the island is an error of Burn's, not garbage.
#[test]
fn a_kept_linear_without_an_island_is_refused() {
    let device = Device::flex();
    let f16 = MixedPrecision::f16().keep(ParamGroup::all());
    let linear = fill(LinearConfig::new(6, 4).init(&device)).apply_reparameterization(f16.clone());
    let input = f16.cast(tensor([5, 6], &device));
    let message = panic_message(|| linear.forward(input.clone()));
    assert!(message.contains("dtype mismatch"), "{message}");
    assert_eq!(in_f32(input, |x| linear.forward(x)).dtype(), DType::F16);
}

/// Frozen parameters compute in half precision too, and get no gradient.
#[test]
fn frozen_parameters_are_cast_too() {
    let device = Device::flex().autodiff();
    let mut net = Net::new(&device);
    net.first = net.first.no_grad();
    let f16 = MixedPrecision::f16().keep(ParamGroup::from_predicate("norm"));
    let net = net.apply_reparameterization(f16.clone());
    assert_eq!(net.first.weight.val().dtype(), DType::F16);
    let loss = net.forward(f16.cast(tensor([5, 6], &device)));
    let loss = loss.cast(FloatDType::F32).square().mean();
    let grads = burn::optim::GradientsParams::from_grads(loss.backward(), &net);
    let paths: Vec<String> = gradients(&grads, &net)
        .into_iter()
        .map(|(p, _)| p)
        .collect();
    assert_eq!(
        paths,
        ["norm.gamma", "norm.beta", "last.weight", "last.bias"]
    );
}
