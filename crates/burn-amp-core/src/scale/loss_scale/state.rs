//! The rule of a schedule with what it remembers beside the scale and the counts, and how that is stored: by the name of the rule.

use serde::{Serialize, Serializer};
use serde_json::Value;
use std::{any::Any, error::Error, sync::Arc};

use super::built_in::{AdaptiveInterval, BuiltIn, Memory};
use super::rule::{DynRule, Evidence, NextScale, Rule};
use super::{config::GradScalerConfig, log_max, near_top, schedule::Schedule};

/// A clone and its name are to be had under a lock: no code of a program is called for them.
#[derive(Clone, Debug)]
pub(super) struct State {
    name: Arc<str>,
    /// As it is at the first step.
    first: Arc<dyn DynRule>,
    rule: Arc<dyn DynRule>,
}

/// A record has brought it: the state of a rule which the program has to give.
#[derive(Clone, Debug)]
pub(super) struct Unknown {
    pub(super) name: String,
    pub(super) state: String,
}

impl Rule for Unknown {
    fn name(&self) -> &str {
        &self.name
    }

    fn advance(&mut self, _scale: f32, _evidence: Evidence) -> NextScale {
        NextScale::Counted
    }

    fn state(&self) -> String {
        self.state.clone()
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.state = state.to_string();
        Ok(())
    }
}

impl State {
    /// Before the first step.
    pub(super) fn first(config: &GradScalerConfig) -> Self {
        fn of(schedule: Schedule, memory: impl Memory) -> State {
            State::new(BuiltIn { schedule, memory })
        }
        let schedule = config.schedule;
        match schedule {
            Schedule::GrowthInterval => of(schedule, ()),
            Schedule::AdaptiveInterval { .. } => {
                let start = AdaptiveInterval {
                    interval: config.growth_interval,
                    growths_in_a_row: 0,
                };
                of(schedule, start)
            }
            Schedule::LogMax { .. } => of(schedule, log_max::Sums::START),
            Schedule::OpenSeq2SeqLogMax { .. } => of(schedule, log_max::OriginalSums::START),
            Schedule::NearTop { .. } => of(schedule, near_top::Count::default()),
        }
    }

    /// Whether a rule of this name is one of the settings'.
    pub(super) fn is_built_in(name: &str) -> bool {
        let names = [
            <()>::NAME,
            AdaptiveInterval::NAME,
            log_max::Sums::NAME,
            log_max::OriginalSums::NAME,
            near_top::Count::NAME,
        ];
        names.contains(&name)
    }

    pub(super) fn new(rule: impl Rule + Clone) -> Self {
        Self {
            name: rule.name().into(),
            first: Arc::new(rule.clone()),
            rule: Arc::new(rule),
        }
    }

    pub(super) fn rule(&self) -> &dyn Rule {
        &*self.rule
    }

    pub(super) fn rule_mut(&mut self) -> &mut dyn DynRule {
        if Arc::get_mut(&mut self.rule).is_none() {
            self.rule = self.rule.copied();
        }
        Arc::get_mut(&mut self.rule).expect("nobody else has the copy")
    }

    pub(super) fn restarted(&self) -> Self {
        Self {
            rule: self.first.clone(),
            ..self.clone()
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What is stored under the name.
    fn value(&self) -> Value {
        to_value(self.rule.state())
    }

    /// Whether it is PyTorch's, which remembers nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.name() == <()>::NAME
    }

    pub(super) fn is_unknown(&self) -> bool {
        (&*self.rule as &dyn Any).is::<Unknown>()
    }

    /// The interval, where it follows the run.
    pub(super) fn interval(&self) -> Option<AdaptiveInterval> {
        let rule = (&*self.rule as &dyn Any).downcast_ref::<BuiltIn<_>>()?;
        Some(rule.memory)
    }

    pub(super) fn interval_mut(&mut self) -> Option<&mut AdaptiveInterval> {
        // Asked first: another rule needs no copy.
        self.interval()?;
        let rule = (self.rule_mut() as &mut dyn Any).downcast_mut::<BuiltIn<_>>()?;
        Some(&mut rule.memory)
    }

    /// Whether the counts of steps say all: it does not look at gradients.
    pub(super) fn is_counted(&self) -> bool {
        self.is_nothing() || self.interval().is_some()
    }

    /// The same rule at the state of another; none if that is of another rule. The error says why the rule refuses it.
    pub(super) fn continuing(&self, other: &Self) -> Result<Option<Self>, String> {
        let name = self.name();
        if name != other.name() {
            return Ok(None);
        }
        let mut next = self.restarted();
        match next.rule_mut().load_state(&other.rule.state()) {
            Ok(()) => Ok(Some(next)),
            Err(reason) => Err(format!("rule `{name}`: {reason}")),
        }
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
