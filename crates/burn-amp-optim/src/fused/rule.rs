//! The numbers of Burn's optimizers: read from their configurations, and computed for a step as Burn computes them.

use burn::optim::{
    Adam, AdamConfig, AdamState, AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState,
    LearningRate, Optimizer, Sgd, SgdConfig, SgdState,
};
use burn::{
    config::Config, grad_clipping::GradientClipping, optim::momentum::MomentumState, tensor::Tensor,
};
use burn_amp_kernels::{UpdateRow, UpdateRule};
use serde_json::Value;
use std::ops::RangeBounds;

use burn_amp_core::{AmpError, internal::in_range};

/// The configuration of an optimizer whose step is one pass.
pub trait FusedConfig: Config + Clone + Send + Sync + 'static {
    /// Burn's optimizer, which steps where there are no kernels.
    type Optim: Optimizer;

    /// Makes that optimizer's state of handles to the tensors that the rule names.
    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<<Self::Optim as Optimizer>::State<1>>;

    /// Checks the settings, and makes of them Burn's optimizer, and what takes its place where there are kernels.
    fn settings(&self) -> Result<Settings<Self::Optim>, AmpError>;
}

/// Burn's optimizer, its update rule, and the clipping of each gradient before it.
pub type Settings<O> = (O, Rule, Option<GradientClipping>);

impl FusedConfig for SgdConfig {
    type Optim = Sgd;

    fn state(_time: usize, tensors: Vec<Tensor<1>>) -> Option<SgdState<1>> {
        let velocity = tensors.into_iter().next();
        Some(SgdState::new(velocity.map(MomentumState::new)))
    }

    fn settings(&self) -> Result<Settings<Sgd>, AmpError> {
        let fields = Fields::of(self);
        let mut row = UpdateRow {
            decay: fields.penalty()?,
            ..UpdateRow::default()
        };
        let momentum = fields.part("momentum")?;
        let mut nesterov = false;
        if let Some(part) = &momentum {
            nesterov = part.flag("nesterov")?;
            row.beta_1 = part.at_least_0("momentum")?;
            row.factor_1 = (1.0 - part.number("dampening", .., "")?) as f32;
        }
        let kernel = UpdateRule::Sgd {
            momentum: momentum.is_some(),
            nesterov,
        };
        let clipping = fields.clipping("gradient_clipping")?;
        Ok((self.build(), Rule { kernel, row }, clipping))
    }
}

impl FusedConfig for AdamConfig {
    type Optim = Adam;

    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<AdamState<1>> {
        moments(time, tensors).map(AdamState::new)
    }

    fn settings(&self) -> Result<Settings<Adam>, AmpError> {
        let fields = Fields::of(self);
        let amsgrad = fields.flag("amsgrad")?;
        let kernel = UpdateRule::Adam { amsgrad };
        let rule = fields.moments(kernel, fields.penalty()?)?;
        Ok((self.build(), rule, fields.clipping("grad_clipping")?))
    }
}

impl FusedConfig for AdamWConfig {
    type Optim = AdamW;

    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<AdamWState<1>> {
        moments(time, tensors).map(AdamWState::new)
    }

    fn settings(&self) -> Result<Settings<AdamW>, AmpError> {
        let fields = Fields::of(self);
        let kernel = UpdateRule::AdamW {
            amsgrad: fields.flag("amsgrad")?,
            cautious: fields.flag("cautious_weight_decay")?,
        };
        let rule = fields.moments(kernel, fields.at_least_0("weight_decay")?)?;
        Ok((self.build(), rule, fields.clipping("grad_clipping")?))
    }
}

fn moments(time: usize, tensors: Vec<Tensor<1>>) -> Option<AdaptiveMomentumState<1>> {
    let mut tensors = tensors.into_iter();
    let mut state = AdaptiveMomentumState::new(time, tensors.next()?, tensors.next()?);
    state.max_moment_2 = tensors.next();
    Some(state)
}

/// An optimizer as kernels know it.
#[derive(Clone)]
pub struct Rule {
    pub(super) kernel: UpdateRule,
    /// The numbers that are the same in each step; `decay` as it is configured.
    row: UpdateRow,
}

impl Rule {
    /// The names of the state's tensors in a record.
    pub(super) fn names(&self) -> &'static [&'static str] {
        let names: &'static [_] = match self.kernel {
            UpdateRule::Sgd { .. } => &["momentum.velocity"],
            _ => &[
                "momentum.moment_1",
                "momentum.moment_2",
                "momentum.max_moment_2",
            ],
        };
        &names[..self.kernel.states()]
    }

    /// The name of the number of steps in a record, where it is counted.
    pub(super) fn counter(&self) -> Option<&'static str> {
        let counts = !matches!(self.kernel, UpdateRule::Sgd { .. });
        counts.then_some("momentum.time")
    }

    /// The numbers of a step, in Burn's own roundings, but for those that depend on the time: see
    /// [`DeviceScale::send`](burn_amp_kernels::DeviceScale::send).
    pub(super) fn row(&self, lr: LearningRate) -> UpdateRow {
        let rate = lr * f64::from(self.row.decay);
        let decay = match self.kernel {
            UpdateRule::AdamW { cautious: true, .. } => rate as f32,
            UpdateRule::AdamW { .. } => (1.0 - rate) as f32,
            _ => self.row.decay,
        };
        UpdateRow {
            taken: 1.0,
            scale: 1.0,
            lr: lr as f32,
            decay,
            ..self.row
        }
    }
}

/// A configuration as it would be saved: Burn's fields are private. A field that is not there is refused: in another Burn it has another name, and
/// would be turned off here.
#[derive(Debug)]
struct Fields(Value);

impl Fields {
    fn of(config: &impl Config) -> Self {
        // Plain data without maps or foreign types: there is no way for it to fail.
        Self(serde_json::to_value(config).expect("a configuration is plain data"))
    }

    fn get(&self, field: &'static str) -> Result<&Value, AmpError> {
        self.0.get(field).ok_or_else(|| {
            let allowed =
                "in it: this fused optimizer was written for Burn 0.22. Use Burn's own optimizer";
            AmpError::refused(field, "not a field of Burn's configuration", allowed)
        })
    }

    /// An option of several fields; none if it is off.
    fn part(&self, field: &'static str) -> Result<Option<Self>, AmpError> {
        let part = self.get(field)?;
        Ok((!part.is_null()).then(|| Self(part.clone())))
    }

    fn flag(&self, field: &'static str) -> Result<bool, AmpError> {
        Ok(*self.get(field)? == Value::Bool(true))
    }

    fn number(
        &self,
        field: &'static str,
        range: impl RangeBounds<f64>,
        allowed: &str,
    ) -> Result<f64, AmpError> {
        // JSON has no infinities and no NaN.
        let not_finite = || AmpError::refused(field, "infinite or NaN", "a finite number");
        let number = self.get(field)?.as_f64().ok_or_else(not_finite)?;
        in_range(field, number, range.contains(&number), allowed)?;
        Ok(number)
    }

    fn at_least_0(&self, field: &'static str) -> Result<f32, AmpError> {
        Ok(self.number(field, 0.0.., "at least 0")? as f32)
    }

    /// The decay that is added to the gradient.
    fn penalty(&self) -> Result<f32, AmpError> {
        let part = self.part("weight_decay")?;
        part.map_or(Ok(0.0), |part| part.at_least_0("penalty"))
    }

    fn moments(&self, kernel: UpdateRule, decay: f32) -> Result<Rule, AmpError> {
        let beta = |field| self.number(field, 0.0..1.0, "at least 0 and below 1");
        let (beta_1, beta_2) = (beta("beta_1")? as f32, beta("beta_2")? as f32);
        let row = UpdateRow {
            beta_1,
            factor_1: 1.0 - beta_1,
            beta_2,
            factor_2: 1.0 - beta_2,
            epsilon: self.at_least_0("epsilon")?,
            decay,
            ..UpdateRow::default()
        };
        Ok(Rule { kernel, row })
    }

    fn clipping(&self, field: &'static str) -> Result<Option<GradientClipping>, AmpError> {
        let Some(clipping) = self.part(field)? else {
            return Ok(None);
        };
        let (kind, make): (_, fn(f32) -> GradientClipping) = match clipping.0.get("Value") {
            Some(_) => ("Value", GradientClipping::Value),
            None => ("Norm", GradientClipping::Norm),
        };
        let threshold = clipping.number(kind, .., "")?;
        in_range(field, threshold, threshold > 0.0, "a threshold above 0")?;
        Ok(Some(make(threshold as f32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another version of Burn may write it so: what is not found is not taken for off.
    #[test]
    fn a_field_with_another_name_is_refused() {
        let momentum = burn::optim::momentum::MomentumConfig::new();
        let config = SgdConfig::new().with_momentum(Some(momentum));
        let value = serde_json::to_value(config).unwrap();
        let read = |value: Value| {
            let fields = Fields(value);
            let nesterov = fields.part("momentum")?.unwrap().flag("nesterov")?;
            fields.clipping("gradient_clipping").map(|_| nesterov)
        };
        assert!(!read(value.clone()).unwrap());
        for (path, name) in [("", "gradient_clipping"), ("/momentum", "nesterov")] {
            let mut renamed = value.clone();
            let part = renamed
                .pointer_mut(path)
                .and_then(Value::as_object_mut)
                .unwrap();
            let taken = part.remove(name).unwrap();
            part.insert(format!("new_{name}"), taken);
            let refused = read(renamed).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("`{name}` is not a field")),
                "{refused}"
            );
        }
    }
}
