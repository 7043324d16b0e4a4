//! Lstm and Gru, which build f32 tensors of their own: in an f32 island they run.

use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig,
        gru::{Gru, GruConfig},
        lstm::{Lstm, LstmConfig},
    },
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::in_f32;

use crate::support::{check, panic_message, precision, tensor};

#[derive(Module, Debug)]
struct LstmModel {
    stem: Linear,
    lstm: Lstm,
}

impl LstmModel {
    fn new(device: &Device) -> Self {
        Self {
            stem: LinearConfig::new(4, 5).init(device),
            lstm: LstmConfig::new(5, 3, true).init(device),
        }
    }

    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        in_f32(self.stem.forward(input), |x| self.lstm.forward(x, None).0)
    }
}

#[test]
fn lstm() {
    check(LstmModel::new, &["lstm"], |model, precision, device| {
        model.forward(precision.cast(tensor([2, 4, 4], device)))
    });
}

#[derive(Module, Debug)]
struct GruModel {
    stem: Linear,
    gru: Gru,
}

impl GruModel {
    fn new(device: &Device) -> Self {
        Self {
            stem: LinearConfig::new(4, 5).init(device),
            gru: GruConfig::new(5, 3, true).init(device),
        }
    }

    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        in_f32(self.stem.forward(input), |x| self.gru.forward(x, None))
    }
}

#[test]
fn gru() {
    check(GruModel::new, &["gru"], |model, precision, device| {
        model.forward(precision.cast(tensor([2, 4, 4], device)))
    });
}

/// The reason for the island: zero states in f32, or, with a state in f16, an f32 output buffer.
#[test]
fn recurrent_layers_without_an_island_are_refused() {
    let f16 = precision(FloatDType::F16, &[]);
    for device in [Device::flex().autodiff(), Device::flex()] {
        let input = f16.cast(tensor([2, 4, 5], &device));
        let lstm = LstmConfig::new(5, 3, true).init(&device);
        let lstm = lstm.apply_reparameterization(f16.clone());
        let message = panic_message(|| lstm.forward(input.clone(), None));
        assert!(message.contains("dtype mismatch"), "{message}");

        let gru = GruConfig::new(5, 3, true).init(&device);
        let gru = gru.apply_reparameterization(f16.clone());
        let message = panic_message(|| gru.forward(input.clone(), None));
        assert!(message.contains("dtype mismatch"), "{message}");
        let state = Tensor::zeros([2, 3], (&device, DType::F16));
        let message = panic_message(|| gru.forward(input, Some(state)));
        assert!(message.contains("dtype mismatch"), "{message}");
    }
}
