//! Models whose parameters are bf16 themselves: without a loss scale, and with master weights.

use burn::{
    module::Module,
    optim::AdamConfig,
    tensor::{DType, Device, FloatDType},
};
use burn_amp::{GradScalerConfig, MasterWeights, MixedPrecision, to_half};

use crate::support::{Batch, Net, Run, loader, lr, read_metric, samples, temp_dir, values};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

/// A net that computes in its parameters' precision, without `autocast`.
#[derive(Module, Debug)]
pub struct Half {
    pub net: Net,
}

impl InferenceStep for Half {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        let logits = self.net.forward(batch.features.clone().cast(DType::BF16));
        self.net.output(logits.cast(DType::F32), batch)
    }
}

impl TrainStep for Half {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

#[test]
fn master_weights_train_bf16_parameters_in_a_learner() {
    let run = Run::default();
    let scaler = GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_dynamic(false);
    let amp = MixedPrecision::bf16().with_scaler(scaler).unwrap();
    let net = to_half(Net::new(&Device::flex().autodiff()), FloatDType::BF16, &[]);
    let optim = MasterWeights::new(AdamConfig::new().build());
    let learner = amp.learner(Half { net: net.clone() }, optim, lr()).unwrap();
    let folder = temp_dir();
    let result = run.training(folder.path()).launch(learner);
    assert!(result.error.is_none());
    let counters = result.model.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (24, 0));
    assert_eq!(result.model.net.hidden.weight.val().dtype(), DType::BF16);
    assert!(values(&result.model.net) != values(&net));

    let accuracy = read_metric(folder.path(), 4, "Accuracy");
    let last = accuracy.last().unwrap().trim_end_matches(",final");
    assert!(last.parse::<f64>().unwrap() > 95.0, "{accuracy:?}");
}

/// Burn sums the gradients of micro-batches as they are: in bf16, most digits of a sum are lost.
#[test]
fn gradients_of_bf16_parameters_are_summed_in_f32() {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_dynamic(false);
    let amp = MixedPrecision::bf16().with_scaler(scaler).unwrap();
    let device = Device::flex().autodiff();
    let net = to_half(Net::new(&device), FloatDType::BF16, &[]);
    let optim = MasterWeights::new(AdamConfig::new().build());
    let model = amp.learner(Half { net }, optim, lr()).unwrap().model();
    let batches = loader(samples(8), None).to_device(&device);
    let batch = || batches.iter().next().unwrap().unwrap();
    let id = model.net.hidden.weight.id;
    let own = TrainStep::step(&*model, batch()).grads;
    let own = own.get::<2>(id).unwrap();
    assert_eq!(own.dtype(), DType::BF16);
    let grads = TrainStep::step(&model, batch()).grads;
    assert_eq!(grads.len(), 4);
    let wide = grads.get::<2>(id).unwrap();
    assert_eq!(wide.dtype(), DType::F32);
    assert_eq!(wide.into_data(), own.cast(DType::F32).into_data());
}
