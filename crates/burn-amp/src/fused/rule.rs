//! The numbers of Burn's optimizers: read from their configurations, and computed for a step as Burn computes them.

use burn::{
    config::Config,
    grad_clipping::GradientClipping,
    optim::{
        Adam, AdamConfig, AdamState, AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState,
        LearningRate, Optimizer, SgdConfig,
    },
    tensor::Tensor,
};
use burn_amp_kernels::{UpdateRow, UpdateRule};
use serde_json::Value;

use crate::error::{AmpError, in_range};

/// The configuration of an optimizer whose step is one pass.
pub trait FusedConfig: Config {
    /// Its settings, checked.
    #[doc(hidden)]
    fn settings(&self) -> Result<Settings, AmpError>;
}

/// What a step needs to know of a configuration.
#[derive(Clone)]
pub struct Settings {
    pub(super) rule: Rule,
    pub(super) clipping: Option<GradientClipping>,
}

#[derive(Clone)]
pub(super) enum Rule {
    Sgd(Sgd),
    Adam(Moments, Adam),
    AdamW(Moments, AdamW),
}

#[derive(Clone)]
pub(super) struct Sgd {
    decay: f32,
    momentum: Option<Momentum>,
}

#[derive(Clone)]
struct Momentum {
    factor: f32,
    dampening: f64,
    nesterov: bool,
}

#[derive(Clone)]
pub(super) struct Moments {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    decay: f32,
    cautious: bool,
}

impl FusedConfig for SgdConfig {
    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of(self);
        let momentum = match fields.part("momentum") {
            None => None,
            Some(part) => {
                let factor = part.number("momentum")?;
                in_range("momentum", factor, factor >= 0.0, "at least 0")?;
                Some(Momentum {
                    factor: factor as f32,
                    dampening: part.number("dampening")?,
                    nesterov: part.flag("nesterov"),
                })
            }
        };
        let decay = fields.penalty()?;
        Ok(Settings {
            rule: Rule::Sgd(Sgd { decay, momentum }),
            clipping: fields.clipping("gradient_clipping")?,
        })
    }
}

impl FusedConfig for AdamConfig {
    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of(self);
        let moments = fields.moments(fields.penalty()?)?;
        Ok(Settings {
            rule: Rule::Adam(moments, self.build()),
            clipping: fields.clipping("grad_clipping")?,
        })
    }
}

impl FusedConfig for AdamWConfig {
    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of(self);
        let moments = fields.moments(fields.decay("weight_decay")?)?;
        Ok(Settings {
            rule: Rule::AdamW(moments, self.build()),
            clipping: fields.clipping("grad_clipping")?,
        })
    }
}

impl Rule {
    /// What the state's tensors are called in a record.
    pub(super) fn names(&self) -> &'static [&'static str] {
        const MOMENTS: [&str; 3] = [
            "momentum.moment_1",
            "momentum.moment_2",
            "momentum.max_moment_2",
        ];
        match self {
            Self::Sgd(Sgd { momentum, .. }) => match momentum {
                Some(_) => &["momentum.velocity"],
                None => &[],
            },
            Self::Adam(moments, _) | Self::AdamW(moments, _) => match moments.amsgrad {
                true => &MOMENTS,
                false => &MOMENTS[..2],
            },
        }
    }

    /// What the number of steps is called in a record, where it is counted.
    pub(super) fn counter(&self) -> Option<&'static str> {
        match self {
            Self::Sgd(_) => None,
            Self::Adam(..) | Self::AdamW(..) => Some("momentum.time"),
        }
    }

    /// The kernel's rule.
    pub(super) fn kernel(&self) -> UpdateRule {
        match self {
            Self::Sgd(Sgd { momentum, .. }) => UpdateRule::Sgd {
                momentum: momentum.is_some(),
                nesterov: momentum.as_ref().is_some_and(|momentum| momentum.nesterov),
            },
            Self::Adam(moments, _) => UpdateRule::Adam {
                amsgrad: moments.amsgrad,
            },
            Self::AdamW(moments, _) => UpdateRule::AdamW {
                amsgrad: moments.amsgrad,
                cautious: moments.cautious,
            },
        }
    }

    /// The numbers of a step, in Burn's own roundings, but for those that depend on the time: see
    /// [`DeviceScale::send`](burn_amp_kernels::DeviceScale::send).
    pub(super) fn row(&self, lr: LearningRate, fresh: bool) -> UpdateRow {
        let row = UpdateRow {
            taken: 1.0,
            scale: 1.0,
            lr: lr as f32,
            fresh: fresh.into(),
            ..UpdateRow::default()
        };
        match self {
            Self::Sgd(Sgd { decay, momentum }) => {
                let (beta_1, factor_1) = momentum.as_ref().map_or((0.0, 0.0), |momentum| {
                    (momentum.factor, (1.0 - momentum.dampening) as f32)
                });
                UpdateRow {
                    decay: *decay,
                    beta_1,
                    factor_1,
                    ..row
                }
            }
            Self::Adam(moments, _) => UpdateRow {
                decay: moments.decay,
                ..moments.row(row)
            },
            Self::AdamW(moments, _) => {
                let rate = lr * f64::from(moments.decay);
                let decay = match moments.cautious {
                    true => rate,
                    false => 1.0 - rate,
                };
                UpdateRow {
                    decay: decay as f32,
                    ..moments.row(row)
                }
            }
        }
    }

    /// The step by Burn's own operations: parameter and state after it. `time` counts this step; there is no state before the first.
    pub(super) fn composed<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        time: usize,
        state: Vec<Tensor<D>>,
    ) -> (Tensor<D>, Vec<Tensor<D>>) {
        match self {
            Self::Sgd(sgd) => sgd.step(lr, tensor, grad, state),
            Self::Adam(_, adam) => {
                let state = momentum(time - 1, state).map(AdamState::new);
                let (tensor, state) = adam.step(lr, tensor, grad, state);
                (tensor, tensors(state.map(|state| state.momentum)))
            }
            Self::AdamW(_, adam_w) => {
                let state = momentum(time - 1, state).map(AdamWState::new);
                let (tensor, state) = adam_w.step(lr, tensor, grad, state);
                (tensor, tensors(state.map(|state| state.momentum)))
            }
        }
    }
}

impl Sgd {
    /// As Burn's, which shows its velocity to nobody.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        mut state: Vec<Tensor<D>>,
    ) -> (Tensor<D>, Vec<Tensor<D>>) {
        let mut grad = match self.decay {
            0.0 => grad,
            decay => tensor.clone().mul_scalar(decay).add(grad),
        };
        if let Some(momentum) = &self.momentum {
            let velocity = match state.pop() {
                Some(velocity) => grad
                    .clone()
                    .mul_scalar(1.0 - momentum.dampening)
                    .add(velocity.mul_scalar(momentum.factor)),
                None => grad.clone(),
            };
            grad = match momentum.nesterov {
                true => velocity.clone().mul_scalar(momentum.factor).add(grad),
                false => velocity.clone(),
            };
            state = vec![velocity];
        }
        (tensor - grad.mul_scalar(lr), state)
    }
}

impl Moments {
    fn row(&self, row: UpdateRow) -> UpdateRow {
        UpdateRow {
            beta_1: self.beta_1,
            factor_1: 1.0 - self.beta_1,
            beta_2: self.beta_2,
            factor_2: 1.0 - self.beta_2,
            epsilon: self.epsilon,
            ..row
        }
    }
}

/// Burn's state of these tensors, if there are any.
fn momentum<const D: usize>(
    time: usize,
    tensors: Vec<Tensor<D>>,
) -> Option<AdaptiveMomentumState<D>> {
    let mut tensors = tensors.into_iter();
    let mut state = AdaptiveMomentumState::new(time, tensors.next()?, tensors.next()?);
    state.max_moment_2 = tensors.next();
    Some(state)
}

fn tensors<const D: usize>(state: Option<AdaptiveMomentumState<D>>) -> Vec<Tensor<D>> {
    let tensors = state.map(|state| {
        [
            Some(state.moment_1),
            Some(state.moment_2),
            state.max_moment_2,
        ]
    });
    tensors.into_iter().flatten().flatten().collect()
}

/// A configuration as it would be saved: Burn's fields are private.
struct Fields(Value);

impl Fields {
    fn of(config: &impl Config) -> Self {
        // Plain data without maps or foreign types: there is no way for it to fail.
        Self(serde_json::to_value(config).expect("a configuration is plain data"))
    }

    fn part(&self, field: &str) -> Option<Self> {
        let part = &self.0[field];
        (!part.is_null()).then(|| Self(part.clone()))
    }

    fn flag(&self, field: &str) -> bool {
        self.0[field] == Value::Bool(true)
    }

    /// JSON has no infinities and no NaN.
    fn number(&self, field: &'static str) -> Result<f64, AmpError> {
        self.0[field].as_f64().ok_or(AmpError::InvalidValue {
            field,
            value: "infinite or NaN".into(),
            allowed: "a finite number".into(),
        })
    }

    fn decay(&self, field: &'static str) -> Result<f32, AmpError> {
        let decay = self.number(field)?;
        in_range(field, decay, decay >= 0.0, "at least 0")?;
        Ok(decay as f32)
    }

    /// The decay that is added to the gradient.
    fn penalty(&self) -> Result<f32, AmpError> {
        let part = self.part("weight_decay");
        part.map_or(Ok(0.0), |part| part.decay("penalty"))
    }

    fn moments(&self, decay: f32) -> Result<Moments, AmpError> {
        let beta = |field| {
            let beta = self.number(field)?;
            let inside = (0.0..1.0).contains(&beta);
            in_range(field, beta, inside, "at least 0 and below 1")?;
            Ok::<_, AmpError>(beta as f32)
        };
        let epsilon = self.number("epsilon")?;
        in_range("epsilon", epsilon, epsilon >= 0.0, "at least 0")?;
        Ok(Moments {
            beta_1: beta("beta_1")?,
            beta_2: beta("beta_2")?,
            epsilon: epsilon as f32,
            amsgrad: self.flag("amsgrad"),
            decay,
            cautious: self.flag("cautious_weight_decay"),
        })
    }

    fn clipping(&self, field: &'static str) -> Result<Option<GradientClipping>, AmpError> {
        let Some(clipping) = self.part(field) else {
            return Ok(None);
        };
        let by_value = clipping.0.get("Value").is_some();
        let threshold = clipping.number(if by_value { "Value" } else { "Norm" })?;
        in_range(field, threshold, threshold > 0.0, "a threshold above 0")?;
        let threshold = threshold as f32;
        Ok(Some(match by_value {
            true => GradientClipping::Value(threshold),
            false => GradientClipping::Norm(threshold),
        }))
    }
}
