//! A rule of a program as a schedule holds it: beside a copy of how it was given, and stored as its own text.

use serde::{Serialize, Serializer};
use std::{any::Any, sync::Arc};

use super::rule::{Evidence, NextScale, Rule};

/// A rule whose type is erased, and that can be copied and compared.
trait DynRule: Rule + Any {
    fn copied(&self) -> Arc<dyn DynRule>;
    fn equals(&self, other: &dyn DynRule) -> bool;
}

impl<R: Rule + Clone + PartialEq> DynRule for R {
    fn copied(&self) -> Arc<dyn DynRule> {
        Arc::new(self.clone())
    }

    fn equals(&self, other: &dyn DynRule) -> bool {
        (other as &dyn Any).downcast_ref() == Some(self)
    }
}

/// A clone and its name are to be had under a lock: no code of a program is called for them.
#[derive(Clone, Debug)]
pub(super) struct OwnRule {
    pub(super) name: Arc<str>,
    held: RuleState,
}

#[derive(Clone, Debug)]
enum RuleState {
    Given {
        first: Arc<dyn DynRule>,
        rule: Arc<dyn DynRule>,
    },
    /// The state that a record has brought, of a rule which the program has to give.
    Stored(Arc<str>),
}

impl OwnRule {
    pub(super) fn new(rule: impl Rule + Clone + PartialEq) -> Self {
        Self {
            name: rule.name().into(),
            held: RuleState::Given {
                first: rule.copied(),
                rule: rule.copied(),
            },
        }
    }

    pub(super) fn stored(name: &str, state: &str) -> Self {
        Self {
            name: name.into(),
            held: RuleState::Stored(state.into()),
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.held, RuleState::Stored(_))
    }

    pub(super) fn count_from(&self) -> Option<f32> {
        match &self.held {
            RuleState::Given { rule, .. } => rule.count_from(),
            RuleState::Stored(_) => None,
        }
    }

    pub(super) fn advance(&mut self, scale: f32, evidence: Evidence) -> NextScale {
        (self.rule_mut()).map_or(NextScale::Counted, |rule| rule.advance(scale, evidence))
    }

    pub(super) fn restarted(&self) -> Self {
        let mut next = self.clone();
        if let RuleState::Given { first, rule } = &mut next.held {
            *rule = first.clone();
        }
        next
    }

    /// The same rule at the state of another. The error says why it refuses that.
    pub(super) fn continuing(&self, other: &Self) -> Result<Self, String> {
        let mut next = self.restarted();
        match next.rule_mut() {
            Some(rule) => (rule.load_state(&other.state()))
                .map_err(|reason| format!("rule `{}`: {reason}", self.name))?,
            None => next = other.clone(),
        }
        Ok(next)
    }

    fn rule_mut(&mut self) -> Option<&mut dyn DynRule> {
        let RuleState::Given { rule, .. } = &mut self.held else {
            return None;
        };
        if Arc::get_mut(rule).is_none() {
            *rule = rule.copied();
        }
        Arc::get_mut(rule)
    }

    fn state(&self) -> String {
        match &self.held {
            RuleState::Given { rule, .. } => rule.state(),
            RuleState::Stored(state) => state.to_string(),
        }
    }
}

/// The rule says what is equal. A stored one has its text alone.
impl PartialEq for OwnRule {
    fn eq(&self, other: &Self) -> bool {
        match (&self.held, &other.held) {
            (RuleState::Given { rule, .. }, RuleState::Given { rule: other, .. }) => {
                rule.equals(&**other)
            }
            _ => self.name == other.name && self.state() == other.state(),
        }
    }
}

impl Serialize for OwnRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(&*self.name, self.state())])
    }
}
