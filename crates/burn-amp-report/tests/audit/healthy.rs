//! Models that train well in f16.

use burn::{
    data::dataloader::DataLoader,
    nn::{LstmConfig, loss::CrossEntropyLossConfig},
    train::InferenceStep,
};
use burn_amp_report::{Audit, audit};
use burn_amp_tests::prelude::*;
use digits::data::Digits;
use std::sync::{Mutex, PoisonError};

use crate::network::{self, Network, batch, same};

fn audited<M: Module>(model: M, calibrates: bool, loss: impl Fn(&M) -> Tensor<1>) -> Audit {
    let amp = MixedPrecision::f16();
    let model = model.apply_reparameterization(amp.clone());
    if calibrates {
        amp.calibrate(&model, &loss).unwrap();
    }
    audit(&model, &amp, &loss).unwrap()
}

fn first<T>(loader: &dyn DataLoader<T>) -> T {
    loader.iter().next().unwrap().unwrap()
}

fn perceptron() -> Audit {
    audited(Network::new(), false, |m| {
        network::loss(autocast(batch(), |x| m.forward(x, same)))
    })
}

fn recurrent() -> Audit {
    let device = flex();
    let model = LstmConfig::new(16, 16, true).init(&device);
    audited(model, false, |m| {
        let output = autocast(batch().unsqueeze::<3>(), |x| {
            in_f32(x, |x| m.forward(x, None).0)
        });
        (output - 0.5).square().mean()
    })
}

fn seeded() -> Device {
    let device = flex();
    device.seed(3);
    device
}

/// The digits, before the device is seeded.
fn digits() -> Digits {
    let digits = Digits::load(&flex()).unwrap();
    seeded();
    digits
}

fn sigmoids() -> Audit {
    let digits = digits();
    let model = ::digits::model::Network::new(&flex());
    audited(model, true, |m| {
        let logits = autocast(digits.train.images.clone(), |x| m.forward(x));
        ::digits::training::brier_score(logits, digits.train.labels.clone())
    })
}

fn classifier() -> Audit {
    let digits = digits();
    let batch = learner::data::DigitsBatch {
        images: digits.train.images.clone(),
        labels: digits.train.labels.clone(),
    };
    let model = learner::model::Classifier::new(&flex());
    audited(model, true, |m| InferenceStep::step(m, batch.clone()).loss)
}

fn critic() -> Audit {
    let digits = digits();
    let model = gan::network::Network::critic(&flex());
    let noise = Tensor::<2>::random([64, 64], Distribution::Default, &flex());
    audited(model, false, |m| {
        let real = digits.train.images.clone().narrow(0, 0, 64);
        let [real, fake] = autocast([real, noise.clone()], |x| x.map(|x| m.forward(x)));
        fake.mean() - real.mean()
    })
}

fn gpt(tied: bool) -> Audit {
    let device = seeded();
    let size = ::gpt::model::Size {
        context: 32,
        width: 32,
        heads: 4,
        layers: 2,
        tied,
    };
    let model = ::gpt::model::Gpt::new(100, size, &device);
    let tokens = |seed: u64| {
        device.seed(seed);
        let uniform = Distribution::Uniform(0.0, 100.0);
        Tensor::<2>::random([8, 32], uniform, &Device::flex()).int()
    };
    let (tokens, next) = (tokens(1), tokens(2).reshape([256]));
    audited(model, false, |m| {
        let logits = autocast(tokens.clone(), |tokens| m.forward(tokens));
        cross_entropy(logits, next.clone())
    })
}

fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits, targets)
}

fn regression() -> Audit {
    use programs::regression::{TrainingConfig, data, model::ModelConfig};
    let device = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new(), &device).0);
    audited(ModelConfig::new().init(&device), false, |m| {
        let output = autocast(batch.inputs.clone(), |x| m.forward(x));
        (output - batch.targets.clone()).square().mean()
    })
}

fn sums() -> Audit {
    use programs::gpt::{TrainingConfig, data, model::ModelConfig};
    let device = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new(), &device).0);
    audited(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.inputs.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone().flatten(0, 1))
    })
}

fn sentences() -> Audit {
    use programs::transformer::{TrainingConfig, data, half::model::ModelConfig};
    let device = seeded();
    let batch = first(&*data::loaders(&TrainingConfig::new()).0);
    audited(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.tokens.clone(), |x| m.forward(x, batch.mask.clone()));
        cross_entropy(logits, batch.targets.clone())
    })
}

fn images() -> Audit {
    use programs::cnn::{TrainingConfig, data, half::model::ModelConfig};
    let device = seeded();
    let [train, ..] = data::loaders(&TrainingConfig::new()).unwrap();
    let batch = first(&*train);
    audited(ModelConfig::new().init(&device), false, |m| {
        let logits = autocast(batch.images.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone())
    })
}

fn drawing() -> Audit {
    use programs::wgan::model::{Generator, noise};
    let device = seeded();
    let noise = noise(32, &device);
    audited(Generator::new(&device), false, |m| {
        autocast(noise.clone(), |x| m.forward(x)).square().mean()
    })
}

/// One after another: each seeds the device.
static ALONE: Mutex<()> = Mutex::new(());

macro_rules! healthy {
    ($($name:ident: $audit:expr,)*) => {
        mod models_raise_no_alarm {
            $(#[test]
            fn $name() {
                use super::*;
                let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
                let audit = $audit;
                assert!(audit.verdict().is_fine(), "{audit}");
            })*
        }
    };
}

healthy! {
    a_perceptron: perceptron(),
    an_lstm_in_f32: recurrent(),
    of_digits: sigmoids(),
    of_learner: classifier(),
    of_gan: critic(),
    of_gpt: gpt(false),
    of_gpt_tied: gpt(true),
    of_programs_regression: regression(),
    of_programs_gpt: sums(),
    of_programs_transformer: sentences(),
    of_programs_cnn: images(),
    of_programs_wgan: drawing(),
}
