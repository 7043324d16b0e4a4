//! Gradients that f16 cannot hold: gone without scaling, all there with it.

use burn_amp_tests::prelude::*;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(8, 16).init(device),
            second: LinearConfig::new(16, 4).init(device),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = sigmoid(self.first.forward(input));
        self.second.forward(hidden)
    }
}

/// A loss whose gradient with respect to each output is 2.5e-9: f16 ends at 6e-8.
fn loss(output: Tensor<2>) -> Tensor<1> {
    output.sum() * 2.5e-9
}

#[test]
fn all_zero_without_scaling_and_none_with_it() {
    let device = Device::flex().autodiff();
    let plain = fill(Mlp::new(&device), 0, 0.4);
    let values = TensorData::new(wave(0, 16 * 8, 0.5), [16, 8]);
    let input = Tensor::<2>::from_data(values, &device) + 1.0;
    let gradients = |amp: &MixedPrecision| {
        let model = plain.clone().apply_reparameterization(amp.clone());
        let output = amp.autocast(input.clone(), |x| model.forward(x));
        GradientsParams::from_grads(loss(output).backward(), &model)
    };

    let disabled = GradScalerConfig::new().with_enabled(false);
    let unscaled = MixedPrecision::f16().with_scaler(disabled).unwrap();
    assert_eq!(unscaled.loss_scale(), 1.0);
    let unscaled = inspect(&gradients(&unscaled), &plain).unwrap();
    assert_eq!(unscaled.gradients(), 4);
    assert_eq!(unscaled.zero_share(), 1.0);

    let amp = MixedPrecision::f16();
    assert_eq!(amp.loss_scale(), 65536.0);
    let scaled = gradients(&amp);
    let status = inspect(&scaled, &plain).unwrap();
    assert!(!status.has_overflow());
    assert_eq!(status.elements(), unscaled.elements());
    assert_eq!(status.zeros(), 0);

    // And they are what f32 finds, but for the rounding to f16.
    let id = plain.first.weight.id;
    let expected = gradients(&MixedPrecision::f32()).get::<2>(id).unwrap();
    let actual = scaled.get::<2>(id).unwrap();
    let largest: f32 = expected.clone().abs().max().into_scalar();
    let error: f32 = (actual - expected).abs().max().into_scalar();
    assert!(error < 2e-2 * largest, "off by {error} of {largest}");
}
