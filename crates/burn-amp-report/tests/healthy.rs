//! Models that train well in f16 raise no alarm: those of the examples, and others. A program of its own: their random numbers are the device's, which
//! other tests would draw from, too.

use burn::{
    data::dataloader::DataLoader, nn::LstmConfig, nn::loss::CrossEntropyLossConfig,
    train::InferenceStep,
};
use burn_amp_report::audit;
use burn_amp_tests::{prelude::*, random};
use digits::data::Digits;

/// `[32, 16]`, of mean 0 and a deviation near 1. No random numbers of the device, which other tests draw too.
fn batch() -> Tensor<2> {
    random(1, [32, 16], &flex()) * 1.4
}

fn healthy<M: Module>(what: &str, model: M, calibrates: bool, loss: impl Fn(&M) -> Tensor<1>) {
    let amp = MixedPrecision::f16();
    let model = model.apply_reparameterization(amp.clone());
    if calibrates {
        amp.calibrate(&model, &loss).unwrap();
    }
    let audit = audit(&model, &amp, &loss).unwrap();
    assert!(audit.verdict().is_fine(), "{what}: {audit}");
}

fn first<T>(loader: &dyn DataLoader<T>) -> T {
    loader.iter().next().unwrap().unwrap()
}

fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, targets)
}

fn mean_square<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    output.square().mean()
}

/// One after another, for the same reason.
#[test]
fn healthy_models_raise_no_alarm() {
    let device = flex();
    let digits = Digits::load(&device).unwrap();
    let (images, labels) = (digits.train.images, digits.train.labels);
    device.seed(3);

    let lstm = LstmConfig::new(16, 16, true).init(&device);
    healthy("an LSTM in f32", lstm, false, |m| {
        let batch = batch().unsqueeze::<3>();
        let output = autocast(batch, |x| in_f32(x, |x| m.forward(x, None).0));
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
        let (context, width, heads, layers) = (32, 32, 4, 2);
        let size = gpt::model::Size {
            context,
            width,
            heads,
            layers,
            tied,
        };
        let uniform = Distribution::Uniform(0.0, 100.0);
        let [tokens, next] =
            [(); 2].map(|()| Tensor::<2>::random([8, 32], uniform, &Device::flex()).int());
        let model = gpt::model::Gpt::new(100, size, &device);
        healthy("gpt", model, false, |m| {
            let logits = autocast(tokens.clone(), |tokens| m.forward(tokens));
            cross_entropy(logits, next.clone().reshape([256]))
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
        mean_square(output - batch.targets.clone())
    });

    let (train, _) = gpt::data::loaders(&gpt::TrainingConfig::new(), device);
    let batch = first(&*train);
    let model = gpt::model::ModelConfig::new().init(device);
    healthy("gpt", model, false, |m| {
        let logits = autocast(batch.inputs.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone().flatten(0, 1))
    });

    let (train, _) = transformer::data::loaders(&transformer::TrainingConfig::new());
    let batch = first(&*train);
    let model = transformer::half::model::ModelConfig::new().init(device);
    healthy("transformer", model, false, |m| {
        let logits = autocast(batch.tokens.clone(), |x| m.forward(x, batch.mask.clone()));
        cross_entropy(logits, batch.targets.clone())
    });

    let [train, ..] = cnn::data::loaders(&cnn::TrainingConfig::new()).unwrap();
    let batch = first(&*train);
    let model = cnn::half::model::ModelConfig::new().init(device);
    healthy("cnn", model, false, |m| {
        let logits = autocast(batch.images.clone(), |x| m.forward(x));
        cross_entropy(logits, batch.targets.clone())
    });

    let noise = wgan::model::noise(32, device);
    let model = wgan::model::Generator::new(device);
    healthy("wgan", model, false, |m| {
        mean_square(autocast(noise.clone(), |x| m.forward(x)))
    });
}
