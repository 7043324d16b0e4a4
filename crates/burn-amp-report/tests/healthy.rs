//! Models that train well in f16 raise no alarm: those of the examples, and others. A program of its own: their random numbers are the device's, which
//! other tests would draw from, too.

use burn::{
    data::dataloader::DataLoader, nn::LstmConfig, nn::loss::CrossEntropyLossConfig,
    train::InferenceStep,
};
use burn_amp_report::audit;
use burn_amp_tests::{prelude::*, random};
use digits::data::Digits;

fn healthy<M: Module>(what: &str, model: M, calibrates: bool, loss: impl Fn(&M) -> Tensor<1>) {
    let amp = MixedPrecision::f16();
    let model = model.apply_reparameterization(amp.clone());
    if calibrates {
        amp.calibrate(&model, &loss).unwrap();
    }
    let audit = audit(&model, &amp, &loss).unwrap();
    assert!(audit.verdict().is_fine(), "{what}: {audit}");
}

/// Of a classifier.
fn classifies<M: Module, const D: usize>(
    what: &str,
    model: M,
    targets: &Tensor<D, Int>,
    logits: impl Fn(&M) -> Tensor<2>,
) {
    let loss = CrossEntropyLossConfig::new().init(&targets.device());
    let targets: Tensor<1, Int> = targets.clone().flatten(0, D - 1);
    healthy(what, model, false, |m| {
        loss.forward(logits(m), targets.clone())
    });
}

fn first<T>(loader: &dyn DataLoader<T>) -> T {
    loader.iter().next().unwrap().unwrap()
}

/// One after another, for the same reason.
#[test]
fn healthy_models_raise_no_alarm() {
    let device = flex();
    let digits = Digits::load(&device).unwrap();
    let (images, labels) = (digits.train.images, digits.train.labels);
    device.seed(3);

    let lstm = LstmConfig::new(16, 16, true).init(&device);
    // Of mean 0 and a deviation near 1.
    let batch = random(1, [1, 32, 16], &device) * 1.4;
    healthy("an LSTM in f32", lstm, false, |m| {
        let output = autocast(batch.clone(), |x| in_f32(x, |x| m.forward(x, None).0));
        (output - 0.5).square().mean()
    });

    let model = ::digits::model::Network::new(&device);
    healthy("digits", model, true, |m| {
        let logits = autocast(images.clone(), |x| m.forward(x));
        ::digits::training::brier_score(logits, labels.clone())
    });

    let model = learner::model::Classifier::new(&device);
    healthy("learner", model, true, |m| {
        let (images, labels) = (images.clone(), labels.clone());
        InferenceStep::step(m, learner::data::DigitsBatch { images, labels }).loss
    });

    let model = gan::network::Network::critic(&device);
    let noise = Tensor::<2>::random([64, 64], Distribution::Default, &device);
    healthy("gan", model, false, |m| {
        let real = images.clone().narrow(0, 0, 64);
        let [real, fake] = autocast([real, noise.clone()], |x| x.map(|x| m.forward(x)));
        fake.mean() - real.mean()
    });

    for tied in [false, true] {
        let size = gpt::model::Size {
            context: 32,
            width: 32,
            heads: 4,
            layers: 2,
            tied,
        };
        let uniform = Distribution::Uniform(0.0, 100.0);
        let [tokens, next] =
            [(); 2].map(|()| Tensor::<2>::random([8, 32], uniform, &Device::flex()).int());
        let model = gpt::model::Gpt::new(100, size, &device);
        classifies("gpt", model, &next, |m| {
            autocast(tokens.clone(), |x| m.forward(x))
        });
    }
    of_programs(&device);
}

/// Those of `examples/programs`.
fn of_programs(device: &Device) {
    use programs::{cnn, gpt, regression, transformer, wgan};

    let (train, _) = regression::data::loaders(&regression::TrainingConfig::new(), device);
    let batch = first(&*train);
    let model = regression::model::ModelConfig::new().init(device);
    healthy("regression", model, false, |m| {
        let output = autocast(batch.inputs.clone(), |x| m.forward(x));
        (output - batch.targets.clone()).square().mean()
    });

    let (train, _) = gpt::data::loaders(&gpt::TrainingConfig::new(), device);
    let batch = first(&*train);
    let model = gpt::model::ModelConfig::new().init(device);
    classifies("sums", model, &batch.targets, |m| {
        autocast(batch.inputs.clone(), |x| m.forward(x))
    });

    let (train, _) = transformer::data::loaders(&transformer::TrainingConfig::new());
    let batch = first(&*train);
    let model = transformer::half::model::ModelConfig::new().init(device);
    classifies("transformer", model, &batch.targets, |m| {
        autocast(batch.tokens.clone(), |x| m.forward(x, batch.mask.clone()))
    });

    let [train, ..] = cnn::data::loaders(&cnn::TrainingConfig::new()).unwrap();
    let batch = first(&*train);
    let model = cnn::half::model::ModelConfig::new().init(device);
    classifies("cnn", model, &batch.targets, |m| {
        autocast(batch.images.clone(), |x| m.forward(x))
    });

    let noise = wgan::model::noise(32, device);
    let model = wgan::model::Generator::new(device);
    healthy("wgan", model, false, |m| {
        autocast(noise.clone(), |x| m.forward(x)).square().mean()
    });
}
