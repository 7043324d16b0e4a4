//! Models whose parameters are bf16 themselves: without a loss scale, and with master weights.

use crate::support::*;

/// A net that computes in its parameters' precision, without `autocast`.
#[derive(Module, Debug)]
pub struct Half {
    pub net: Net,
}

impl Own for Half {
    fn output(&self, batch: Batch) -> ClassificationOutput {
        let features = batch.features.clone().cast(self.net.head.weight.dtype());
        let logits = self.net.forward(features);
        self.net.output(logits.cast(DType::F32), batch)
    }
}

/// With parameters in bf16.
pub fn half() -> Model<Half> {
    let net = to_half(net(), FloatDType::BF16, &[]);
    Model { own: Half { net } }
}

/// With master weights at a loss scale of 1.
fn learner() -> (MixedPrecision, Made<Model<Half>>) {
    let scaler = at_scale(1.0).with_dynamic(false);
    let amp = MixedPrecision::bf16().with_scaler(scaler).unwrap();
    let optim = MasterWeights::new(AdamConfig::new().build());
    let learner = amp.learner(half(), optim, lr());
    (amp, learner)
}

#[test]
fn master_weights_train_bf16_parameters_in_a_learner() {
    let (amp, learner) = learner();
    let done = Run::default().train(&temp_dir(), &amp, learner).finished();
    assert_eq!(done.steps(), (24, 0));
    let weight = &done.model.own.net.hidden.weight;
    assert_eq!(weight.val().dtype(), DType::BF16);
    assert!(values(&done.model) != values(&half()));
    assert!(done.last(4, "Accuracy") > 95.0);
}

/// It would train in f32.
#[test]
fn f32_parameters_without_autocast_end_the_run_at_its_first_step() {
    let (run, folder, own) = (Run::of(1), temp_dir(), Half { net: net() });
    let (amp, training) = (run.amp(), run.training(folder.path()));
    let launched = amp.launch(training, Model { own }, AdamConfig::new().init(), lr());
    let error = launched.map(drop).unwrap_err().error;
    is_error(&error, "NoScope", ["the free `autocast`"]);
    assert_eq!(amp.counters().steps(), 1);
}

/// Burn sums the gradients of micro-batches as they are: in bf16, most digits of a sum are lost.
#[test]
fn gradients_of_bf16_parameters_are_summed_in_f32() {
    let model = learner().1.unwrap().model();
    let batch = batches(&samples(8)).remove(0);
    let id = model.own.net.hidden.weight.id;
    let own = TrainStep::step(&*model, batch.clone()).grads;
    let own = own.get::<2>(id).unwrap();
    assert_eq!(own.dtype(), DType::BF16);
    let grads = TrainStep::step(&model, batch).grads;
    assert_eq!(grads.len(), 4);
    let wide = grads.get::<2>(id).unwrap();
    assert_eq!(wide.dtype(), DType::F32);
    assert_eq!(wide.into_data(), own.cast(DType::F32).into_data());
}
