//! Models that train well in f16 raise no alarm.

use burn::{
    data::dataloader::DataLoader, nn::LstmConfig, nn::loss::CrossEntropyLossConfig,
    train::InferenceStep,
};
use burn_amp_report::audit;
use burn_amp_tests::prelude::*;
use digits::data::Digits;
use std::sync::{MutexGuard, PoisonError};

use crate::network::batch;

/// The device, seeded, and until the guard is dropped by nobody else.
fn seeded() -> (Device, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = flex();
    device.seed(3);
    (device, alone)
}

/// The digits, and the device as [`seeded`] has it.
fn digits() -> (Digits, MutexGuard<'static, ()>) {
    let (device, alone) = seeded();
    let digits = Digits::load(&device).unwrap();
    device.seed(3);
    (digits, alone)
}

fn healthy<M: Module>(model: M, calibrates: bool, loss: impl Fn(&M) -> Tensor<1>) {
    let amp = MixedPrecision::f16();
    let model = model.apply_reparameterization(amp.clone());
    if calibrates {
        amp.calibrate(&model, &loss).unwrap();
    }
    let audit = audit(&model, &amp, &loss).unwrap();
    assert!(audit.verdict().is_fine(), "{audit}");
}

fn first<T>(loader: &dyn DataLoader<T>) -> T {
    loader.iter().next().unwrap().unwrap()
}

fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits, targets)
}

#[test]
fn an_lstm_in_f32() {
    let (device, _alone) = seeded();
    healthy(LstmConfig::new(16, 16, true).init(&device), false, |m| {
        let output = autocast(batch().unsqueeze::<3>(), |x| {
            in_f32(x, |x| m.forward(x, None).0)
        });
        (output - 0.5).square().mean()
    });
}

#[test]
fn of_digits() {
    let (digits, _alone) = digits();
    healthy(::digits::model::Network::new(&flex()), true, |m| {
        let logits = autocast(digits.train.images.clone(), |x| m.forward(x));
        ::digits::training::brier_score(logits, digits.train.labels.clone())
    });
}

#[test]
fn of_learner() {
    let (digits, _alone) = digits();
    let (images, labels) = (digits.train.images, digits.train.labels);
    let batch = learner::data::DigitsBatch { images, labels };
    let model = learner::model::Classifier::new(&flex());
    healthy(model, true, |m| InferenceStep::step(m, batch.clone()).loss);
}

#[test]
fn of_gan() {
    let (digits, _alone) = digits();
    let model = gan::network::Network::critic(&flex());
    let noise = Tensor::<2>::random([64, 64], Distribution::Default, &flex());
    healthy(model, false, |m| {
        let real = digits.train.images.clone().narrow(0, 0, 64);
        let [real, fake] = autocast([real, noise.clone()], |x| x.map(|x| m.forward(x)));
        fake.mean() - real.mean()
    });
}

#[test]
fn of_gpt() {
    for tied in [false, true] {
        let (device, _alone) = seeded();
        let size = gpt::model::Size {
            context: 32,
            width: 32,
            heads: 4,
            layers: 2,
            tied,
        };
        let model = gpt::model::Gpt::new(100, size, &device);
        let tokens = |seed: u64| {
            device.seed(seed);
            let uniform = Distribution::Uniform(0.0, 100.0);
            Tensor::<2>::random([8, 32], uniform, &Device::flex()).int()
        };
        let (tokens, next) = (tokens(1), tokens(2).reshape([256]));
        healthy(model, false, |m| {
            let logits = autocast(tokens.clone(), |tokens| m.forward(tokens));
            cross_entropy(logits, next.clone())
        });
    }
}

#[test]
fn of_programs_regression() {
    use programs::regression::{TrainingConfig, data, model::ModelConfig};
    let (device, _alone) = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new(), &device).0);
    healthy(ModelConfig::new().init(&device), false, |m| {
        let output = autocast(batch.inputs.clone(), |x| m.forward(x));
        (output - batch.targets.clone()).square().mean()
    });
}

#[test]
fn of_programs_gpt() {
    use programs::gpt::{TrainingConfig, data, model::ModelConfig};
    let (device, _alone) = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new(), &device).0);
    healthy(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.inputs.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone().flatten(0, 1))
    });
}

#[test]
fn of_programs_transformer() {
    use programs::transformer::{TrainingConfig, data, half::model::ModelConfig};
    let (device, _alone) = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new()).0);
    healthy(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.tokens.clone(), |x| m.forward(x, batch.mask.clone()));
        cross_entropy(logits, batch.targets.clone())
    });
}

#[test]
fn of_programs_cnn() {
    use programs::cnn::{TrainingConfig, data, half::model::ModelConfig};
    let (device, _alone) = seeded();
    let [train, ..] = data::loaders(&TrainingConfig::new()).unwrap();
    let batch = first(&*train);
    healthy(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.images.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone())
    });
}

#[test]
fn of_programs_wgan() {
    use programs::wgan::model::{Generator, noise};
    let (device, _alone) = seeded();
    let noise = noise(32, &device);
    let output = |m: &Generator| autocast(noise.clone(), |x| m.forward(x));
    healthy(Generator::new(&device), false, |m| {
        output(m).square().mean()
    });
}

/// It multiplies by 10^6 there, which f16 does not hold.
#[test]
fn a_head_of_a_handle_in_f32_stays_in_f32() {
    let (device, _alone) = seeded();
    let (amp, in_f32) = (MixedPrecision::f16(), MixedPrecision::f32());
    let [body, head] = [(); 2].map(|()| LinearConfig::new(16, 16).init(&device));
    let loss = |(body, head): &(Linear, Linear)| {
        let hidden = amp.autocast(batch(), |x| body.forward(x));
        (in_f32.autocast(hidden, |x| head.forward(x) * 1e6) * 1e-6).mean()
    };
    let audit = audit(&(amp.attach(body), in_f32.attach(head)), &amp, loss).unwrap();
    assert!(audit.verdict().is_fine(), "{audit}");
}
