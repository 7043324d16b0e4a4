//! What a schedule remembers beside the scale and the counts that all of them have, and how it is stored: by the name of its rule.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{
    adaptive_interval::AdaptiveInterval,
    rule::{DynRule, Evidence, NextScale},
};

#[derive(Clone, Debug)]
pub(super) enum State {
    GrowthInterval,
    /// Counted by `rule.rs` of the kernels, as the growth interval is, so that devices move it too: a `Rule` would copy that arithmetic.
    AdaptiveInterval(AdaptiveInterval),
    Rule(Driver),
    /// A record has brought it: that of a rule which the program has to give.
    Unknown {
        name: String,
        state: String,
    },
}

/// A rule that runs.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    /// As it is at the first step.
    first: Box<dyn DynRule>,
    now: Box<dyn DynRule>,
}

impl Driver {
    pub(super) fn new(rule: Box<dyn DynRule>) -> Self {
        Self {
            now: rule.clone(),
            first: rule,
        }
    }

    pub(super) fn restarted(&self) -> Self {
        Self::new(self.first.clone())
    }

    /// At a stored state. The error says why the rule refuses it.
    pub(super) fn restored(&self, state: &str) -> Result<Self, String> {
        let mut restored = self.restarted();
        match restored.now.load_state(state) {
            Ok(()) => Ok(restored),
            Err(reason) => Err(format!("rule `{}`: {reason}", self.first.name())),
        }
    }
}

impl State {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::GrowthInterval => "GrowthInterval",
            Self::AdaptiveInterval(_) => "AdaptiveInterval",
            Self::Rule(rule) => rule.first.name(),
            Self::Unknown { name, .. } => name,
        }
    }

    /// What is stored under the name.
    fn value(&self) -> Value {
        match self {
            Self::GrowthInterval => Value::Null,
            Self::AdaptiveInterval(state) => serde_json::to_value(state).unwrap_or_default(),
            Self::Rule(rule) => to_value(rule.now.state()),
            Self::Unknown { state, .. } => to_value(state.clone()),
        }
    }

    /// Whether it is PyTorch's, which remembers nothing.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::GrowthInterval)
    }

    /// From which magnitude on scaled values are to be counted.
    pub(super) fn count_from(&self) -> Option<f32> {
        match self {
            Self::Rule(rule) => rule.now.count_from(),
            _ => None,
        }
    }

    /// Takes in what an iteration has shown.
    pub(super) fn advance(&mut self, scale: f32, evidence: Evidence) -> NextScale {
        match self {
            Self::Rule(rule) => rule.now.advance(scale, evidence),
            _ => NextScale::Counted,
        }
    }

    /// Whether the counts of steps say all: it does not look at gradients.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Self::GrowthInterval | Self::AdaptiveInterval(_))
    }

    /// The same rule at the state of another; none if that is of another rule. The error says why the rule refuses it.
    pub(super) fn continuing(&self, other: &Self) -> Result<Option<Self>, String> {
        if self.name() != other.name() {
            return Ok(None);
        }
        Ok(Some(match (self, other) {
            (Self::Rule(rule), _) => Self::Rule(rule.restored(&to_text(&other.value()))?),
            (Self::AdaptiveInterval(_), Self::Unknown { state, .. }) => {
                Self::AdaptiveInterval(AdaptiveInterval::from_json(state)?)
            }
            (Self::GrowthInterval, _) => Self::GrowthInterval,
            _ => other.clone(),
        }))
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.value() == other.value()
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.name(), self.value())])
    }
}

/// JSON as what it is. A string is text that is no JSON, or that is a string itself.
fn to_value(text: String) -> Value {
    match serde_json::from_str(&text) {
        Err(_) | Ok(Value::String(_)) => Value::String(text),
        Ok(value) => value,
    }
}

pub(super) fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
