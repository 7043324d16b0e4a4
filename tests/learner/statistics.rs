//! BatchNorm's running statistics in a run that skips steps.

use burn::{
    lr_scheduler::constant::ConstantLr,
    module::Module,
    nn::{BatchNorm, BatchNormConfig},
    optim::SgdConfig,
    tensor::Device,
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};
use burn_amp::{MixedPrecision, autocast, in_f32};

use crate::support::{Batch, Net, Run, Sample, samples, temp_dir};

/// The statistics are those of the features, whatever the weights are.
#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    net: Net,
}

impl TrainStep for Normed {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Normed {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        let logits = autocast(batch.features.clone(), |x| {
            let x = in_f32(x.unsqueeze_dim::<3>(2), |x| self.norm.forward(x));
            self.net.forward(x.squeeze_dim::<2>(2))
        });
        self.net.output(logits, batch)
    }
}

/// Mean and variance after an epoch, and how many steps were skipped.
fn train(samples: Vec<Sample>, accumulation: Option<usize>) -> ([Vec<f32>; 2], u64) {
    let folder = temp_dir();
    let device = Device::default().autodiff();
    let run = Run {
        samples,
        epochs: 1,
        accumulation,
        ..Run::default()
    };
    let amp: MixedPrecision = run.amp();
    let model = Normed {
        norm: BatchNormConfig::new(8).init(&device),
        net: Net::new(&device),
    };
    let learner = amp
        .learner(model, SgdConfig::new().init(), ConstantLr::new(0.1))
        .unwrap();
    let training = amp.training(run.training(folder.path()));
    let result = training.launch(learner);
    assert!(result.error.is_none());
    let norm = &result.model.norm;
    let statistics = [&norm.running_mean, &norm.running_var];
    let statistics = statistics.map(|s| s.value_sync().into_data().iter::<f32>().collect());
    (statistics, result.model.scaler().counters().skipped())
}

/// A batch that overflows in the forward pass leaves them as if it had not been there: in the middle, and as the first.
#[test]
fn an_overflow_leaves_no_trace_in_them() {
    let good = samples(48);
    let overflow = match MixedPrecision::f16().check_device(&Device::default()) {
        Ok(()) => 1e6,
        Err(_) => f32::INFINITY,
    };
    for batch in [3, 0] {
        let mut bad = good.clone();
        for feature in &mut bad[batch * 8].features {
            *feature = overflow;
        }
        let mut rest = good.clone();
        rest.drain(batch * 8..batch * 8 + 8);
        let (found, skipped) = train(bad, None);
        assert_eq!(skipped, 1);
        assert!(found.iter().flatten().all(|value| value.is_finite()));
        assert_eq!(found, train(rest, None).0, "batch {batch}");
    }
}

/// With two micro-batches to a step, they are those of the step before.
#[test]
fn nor_in_a_window() {
    let good = samples(48);
    for batch in [2, 3] {
        let mut bad = good.clone();
        for feature in &mut bad[batch * 8].features {
            *feature = f32::INFINITY;
        }
        let mut rest = good.clone();
        rest.drain(16..32);
        let (found, skipped) = train(bad, Some(2));
        assert_eq!(skipped, 1);
        assert_eq!(found, train(rest, Some(2)).0, "batch {batch}");
    }
}
