//! What becomes of the gradients of one batch in half precision, layer by layer, beside those in f32.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{DType, Device, Tensor, activation::softmax},
};
use burn_amp::AmpError;

use crate::{
    model::Gpt,
    text::{Text, windows},
    training::{Run, Settings, gradients},
};

/// The gradients of a group of layers.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    /// The layers.
    pub group: &'static str,
    /// Gradient values that are not zero in f32.
    pub values: u64,
    /// Those of them that are zero here.
    pub zeros: u64,
    difference: f64,
    norm: f64,
}

impl Lost {
    /// The share of values that are lost, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.zeros as f64 / self.values.max(1) as f64
    }

    /// How far the gradient is from that in f32, as a share of the latter's length (L2): 1 if nothing is left of it.
    pub fn error(&self) -> f64 {
        (self.difference / self.norm).sqrt()
    }
}

/// Compares the gradients of one batch, which begins at `starts`, with those in f32, for the parameters of `model`.
///
/// # Errors
///
/// None with the settings here.
pub fn lost(
    model: &Gpt,
    run: Run,
    text: &Text,
    starts: &[usize],
    settings: &Settings,
) -> Result<Vec<Lost>, AmpError> {
    let grads = |run: Run| -> Result<GradientsParams, AmpError> {
        let amp = run.precision()?;
        // The same parameters, read by another precision.
        let model = settings
            .network(text, &Device::flex().autodiff())
            .load_record(model.clone().into_record());
        let model = amp.attach(model);
        Ok(gradients(&model, &amp, text, starts, settings).1)
    };
    let (full, half) = (grads(Run::F32)?, grads(run)?);
    let mut compare = Compare {
        full: &full,
        half: &half,
        path: Vec::new(),
        groups: Vec::new(),
    };
    model.visit(&mut compare);
    Ok(compare.groups)
}

/// Of the gradients at the logits, probability / tokens of a batch, of words that are not the right one: the share that
/// f16 rounds to zero without a scale, and the probability that these words have together.
pub fn lost_words(model: &Gpt, text: &Text, starts: &[usize], settings: &Settings) -> (f64, f64) {
    let length = settings.size.context;
    let starts = &starts[..starts.len().min(512 / length)];
    let (tokens, _) = windows(&text.train, starts, length, &Device::flex());
    let probabilities = softmax(model.valid().forward(tokens), 1);
    let gradients = probabilities.clone() / settings.batch_tokens as f64;
    let zero = gradients.cast(DType::F16).equal_elem(0.0).float();
    let zero = zero.cast(DType::F32);
    let held = (probabilities * zero.clone()).sum_dim(1).mean();
    let number = |tensor: Tensor<1>| f64::from(tensor.into_scalar::<f32>());
    (number(zero.mean()), number(held))
}

struct Compare<'a> {
    full: &'a GradientsParams,
    half: &'a GradientsParams,
    path: Vec<String>,
    groups: Vec<Lost>,
}

impl ModuleVisitor for Compare<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = |grads: &GradientsParams| grads.get::<D>(param.id).map(Tensor::into_data);
        let (Some(full), Some(half)) = (values(self.full), values(self.half)) else {
            return;
        };
        let group = group(&self.path);
        let at = self.groups.iter().position(|other| other.group == group);
        let at = at.unwrap_or_else(|| {
            self.groups.push(Lost {
                group,
                ..Lost::default()
            });
            self.groups.len() - 1
        });
        let lost = &mut self.groups[at];
        for (full, half) in full.iter::<f64>().zip(half.iter::<f64>()) {
            lost.values += u64::from(full != 0.0);
            lost.zeros += u64::from(full != 0.0 && half == 0.0);
            lost.difference += (full - half).powi(2);
            lost.norm += full.powi(2);
        }
    }
}

fn group(path: &[String]) -> &'static str {
    let has = |name: &str| path.iter().any(|part| part.starts_with(name));
    if has("token") || has("position") {
        "embeddings"
    } else if has("query") || has("key") {
        "queries, keys"
    } else if has("mha") {
        "values, outputs"
    } else if has("pwff") {
        "feed forward"
    } else if has("norm") {
        "norms"
    } else {
        "head"
    }
}
