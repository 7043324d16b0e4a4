//! A rule of a program as a schedule holds it: with a copy of how it was given, and stored as what it says of itself.

use serde::{Serialize, Serializer};
use serde_json::Value;
use std::{error::Error, sync::Arc};

use super::rule::{Evidence, NextScale, Rule};

/// A rule that can be copied.
trait DynRule: Rule {
    fn copied(&self) -> Arc<dyn DynRule>;
}

impl<R: Rule + Clone> DynRule for R {
    fn copied(&self) -> Arc<dyn DynRule> {
        Arc::new(self.clone())
    }
}

/// A clone and its name are to be had under a lock: no code of a program is called for them.
#[derive(Clone, Debug)]
pub(super) struct OwnRule {
    name: Arc<str>,
    held: Held,
}

#[derive(Clone, Debug)]
enum Held {
    Given {
        first: Arc<dyn DynRule>,
        rule: Arc<dyn DynRule>,
    },
    /// What a record has brought of a rule which the program has to give.
    Stored(String),
}

impl OwnRule {
    pub(super) fn new(rule: impl Rule + Clone) -> Self {
        let held = Held::Given {
            first: Arc::new(rule.clone()),
            rule: Arc::new(rule.clone()),
        };
        Self {
            name: rule.name().into(),
            held,
        }
    }

    pub(super) fn stored(name: &str, state: &Value) -> Self {
        let state = match state {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        Self {
            name: name.into(),
            held: Held::Stored(state),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.held, Held::Stored(_))
    }

    pub(super) fn count_from(&self) -> Option<f32> {
        match &self.held {
            Held::Given { rule, .. } => rule.count_from(),
            Held::Stored(_) => None,
        }
    }

    pub(super) fn advance(&mut self, scale: f32, evidence: Evidence) -> NextScale {
        (self.rule_mut()).map_or(NextScale::Counted, |rule| rule.advance(scale, evidence))
    }

    pub(super) fn restarted(&self) -> Self {
        let mut next = self.clone();
        if let Held::Given { first, rule } = &mut next.held {
            *rule = first.clone();
        }
        next
    }

    /// The same rule at the state of another. The error says why it refuses that.
    pub(super) fn continuing(&self, other: &Self) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut next = self.restarted();
        match next.rule_mut() {
            Some(rule) => rule.load_state(&other.state())?,
            None => next = other.clone(),
        }
        Ok(next)
    }

    fn rule_mut(&mut self) -> Option<&mut dyn DynRule> {
        let Held::Given { rule, .. } = &mut self.held else {
            return None;
        };
        if Arc::get_mut(rule).is_none() {
            *rule = rule.copied();
        }
        Arc::get_mut(rule)
    }

    fn state(&self) -> String {
        match &self.held {
            Held::Given { rule, .. } => rule.state(),
            Held::Stored(state) => state.clone(),
        }
    }

    /// JSON as what it is. A string is text that is no JSON, or that is a string itself.
    fn value(&self) -> Value {
        let text = self.state();
        match serde_json::from_str(&text) {
            Err(_) | Ok(Value::String(_)) => Value::String(text),
            Ok(value) => value,
        }
    }
}

impl PartialEq for OwnRule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value() == other.value()
    }
}

impl Serialize for OwnRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(&*self.name, self.value())])
    }
}
