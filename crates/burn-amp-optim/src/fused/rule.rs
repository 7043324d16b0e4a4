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
    #[doc(hidden)]
    type Optim: Optimizer;

    #[doc(hidden)]
    fn optimizer(&self) -> Self::Optim;

    /// That optimizer's state, of handles to the tensors that the rule names.
    #[doc(hidden)]
    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<<Self::Optim as Optimizer>::State<1>>;

    /// Its settings, checked.
    #[doc(hidden)]
    fn settings(&self) -> Result<Settings, AmpError>;
}

/// What a step needs to know of a configuration.
pub type Settings = (Rule, Option<GradientClipping>);

impl FusedConfig for SgdConfig {
    type Optim = Sgd;

    fn optimizer(&self) -> Sgd {
        self.build()
    }

    fn state(_time: usize, tensors: Vec<Tensor<1>>) -> Option<SgdState<1>> {
        let velocity = tensors.into_iter().next();
        Some(SgdState::new(velocity.map(MomentumState::new)))
    }

    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of(self, &["weight_decay", "momentum", "gradient_clipping"])?;
        let mut row = UpdateRow {
            decay: fields.penalty()?,
            ..UpdateRow::default()
        };
        let momentum = fields.part("momentum", &["momentum", "dampening", "nesterov"])?;
        if let Some(part) = &momentum {
            row.beta_1 = part.at_least_0("momentum")?;
            row.factor_1 = (1.0 - part.number("dampening", .., "")?) as f32;
        }
        let kernel = UpdateRule::Sgd {
            momentum: momentum.is_some(),
            nesterov: momentum.is_some_and(|part| part.flag("nesterov")),
        };
        let clipping = fields.clipping("gradient_clipping")?;
        Ok((Rule { kernel, row }, clipping))
    }
}

impl FusedConfig for AdamConfig {
    type Optim = Adam;

    fn optimizer(&self) -> Adam {
        self.build()
    }

    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<AdamState<1>> {
        moments(time, tensors).map(AdamState::new)
    }

    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of_moments(self, &["amsgrad"])?;
        let kernel = UpdateRule::Adam {
            amsgrad: fields.flag("amsgrad"),
        };
        fields.moments(kernel, fields.penalty()?)
    }
}

impl FusedConfig for AdamWConfig {
    type Optim = AdamW;

    fn optimizer(&self) -> AdamW {
        self.build()
    }

    fn state(time: usize, tensors: Vec<Tensor<1>>) -> Option<AdamWState<1>> {
        moments(time, tensors).map(AdamWState::new)
    }

    fn settings(&self) -> Result<Settings, AmpError> {
        let fields = Fields::of_moments(self, &["amsgrad", "cautious_weight_decay"])?;
        let kernel = UpdateRule::AdamW {
            amsgrad: fields.flag("amsgrad"),
            cautious: fields.flag("cautious_weight_decay"),
        };
        fields.moments(kernel, fields.at_least_0("weight_decay")?)
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
    /// What is the same in each step; `decay` as it is configured.
    row: UpdateRow,
}

impl Rule {
    /// What the state's tensors are called in a record.
    pub(super) fn names(&self) -> &'static [&'static str] {
        const VELOCITY: [&str; 1] = ["momentum.velocity"];
        const MOMENTS: [&str; 3] = [
            "momentum.moment_1",
            "momentum.moment_2",
            "momentum.max_moment_2",
        ];
        match self.kernel {
            UpdateRule::Sgd { .. } => &VELOCITY[..self.kernel.states()],
            _ => &MOMENTS[..self.kernel.states()],
        }
    }

    /// What the number of steps is called in a record, where it is counted.
    pub(super) fn counter(&self) -> Option<&'static str> {
        let counts = !matches!(self.kernel, UpdateRule::Sgd { .. });
        counts.then_some("momentum.time")
    }

    /// The numbers of a step, in Burn's own roundings, but for those that depend on the time: see
    /// [`DeviceScale::send`](burn_amp_kernels::DeviceScale::send).
    pub(super) fn row(&self, lr: LearningRate, fresh: bool) -> UpdateRow {
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
            fresh: fresh.into(),
            decay,
            ..self.row
        }
    }
}

/// A configuration as it would be saved: Burn's fields are private. It has all those that are asked for.
#[derive(Debug)]
struct Fields(Value);

impl Fields {
    fn of(config: &impl Config, fields: &[&'static str]) -> Result<Self, AmpError> {
        // Plain data without maps or foreign types: there is no way for it to fail.
        Self::with(
            serde_json::to_value(config).expect("a configuration is plain data"),
            fields,
        )
    }

    fn of_moments(config: &impl Config, more: &[&'static str]) -> Result<Self, AmpError> {
        let both = [
            "beta_1",
            "beta_2",
            "epsilon",
            "weight_decay",
            "grad_clipping",
        ];
        Self::of(config, &[&both, more].concat())
    }

    /// Refuses a configuration of another Burn, in which a field has another name: what is not found would be turned off.
    fn with(value: Value, fields: &[&'static str]) -> Result<Self, AmpError> {
        match fields.iter().find(|field| value.get(field).is_none()) {
            None => Ok(Self(value)),
            Some(field) => {
                let allowed = "in it: this fused optimizer was written for Burn 0.22. Use Burn's own optimizer";
                Err(AmpError::refused(
                    field,
                    "not a field of Burn's configuration",
                    allowed,
                ))
            }
        }
    }

    /// An option of several fields; none if it is off.
    fn part(&self, field: &str, fields: &[&'static str]) -> Result<Option<Self>, AmpError> {
        match &self.0[field] {
            Value::Null => Ok(None),
            part => Self::with(part.clone(), fields).map(Some),
        }
    }

    fn flag(&self, field: &str) -> bool {
        self.0[field] == Value::Bool(true)
    }

    fn number(
        &self,
        field: &'static str,
        range: impl RangeBounds<f64>,
        allowed: &str,
    ) -> Result<f64, AmpError> {
        // JSON has no infinities and no NaN.
        let not_finite = || AmpError::refused(field, "infinite or NaN", "a finite number");
        let number = self.0[field].as_f64().ok_or_else(not_finite)?;
        in_range(field, number, range.contains(&number), allowed)?;
        Ok(number)
    }

    fn at_least_0(&self, field: &'static str) -> Result<f32, AmpError> {
        Ok(self.number(field, 0.0.., "at least 0")? as f32)
    }

    /// The decay that is added to the gradient.
    fn penalty(&self) -> Result<f32, AmpError> {
        let part = self.part("weight_decay", &["penalty"])?;
        part.map_or(Ok(0.0), |part| part.at_least_0("penalty"))
    }

    fn moments(&self, kernel: UpdateRule, decay: f32) -> Result<Settings, AmpError> {
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
        let clipping = self.clipping("grad_clipping")?;
        Ok((Rule { kernel, row }, clipping))
    }

    fn clipping(&self, field: &'static str) -> Result<Option<GradientClipping>, AmpError> {
        let Some(clipping) = self.part(field, &[])? else {
            return Ok(None);
        };
        let by_value = clipping.0.get("Value").is_some();
        let clipping = Self::with(clipping.0, if by_value { &[] } else { &["Norm"] })?;
        let threshold = clipping.number(if by_value { "Value" } else { "Norm" }, .., "")?;
        in_range(field, threshold, threshold > 0.0, "a threshold above 0")?;
        let threshold = threshold as f32;
        Ok(Some(match by_value {
            true => GradientClipping::Value(threshold),
            false => GradientClipping::Norm(threshold),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As another version of Burn may write it: what is not found is not taken for off.
    #[test]
    fn a_field_with_another_name_is_refused() {
        let momentum = burn::optim::momentum::MomentumConfig::new();
        let config = SgdConfig::new().with_momentum(Some(momentum));
        let value = serde_json::to_value(config).unwrap();
        let fields = ["momentum", "gradient_clipping"];
        assert!(Fields::with(value.clone(), &fields).is_ok());
        for (path, name) in [("", "gradient_clipping"), ("/momentum", "nesterov")] {
            let mut renamed = value.clone();
            let part = renamed
                .pointer_mut(path)
                .and_then(Value::as_object_mut)
                .unwrap();
            let taken = part.remove(name).unwrap();
            part.insert(format!("new_{name}"), taken);
            let read = Fields::with(renamed, &fields);
            let read = read.and_then(|fields| fields.part("momentum", &["dampening", "nesterov"]));
            let refused = read.unwrap_err().to_string();
            assert!(
                refused.contains(&format!("`{name}` is not a field")),
                "{refused}"
            );
        }
    }
}
