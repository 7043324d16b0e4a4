//! What a pass over gradients has found, as a step is counted by it. Knows no tensors.

use crate::scale::loss_scale::{Evidence, Measures, SkipCause};

/// What unscaled gradients have told of the loss scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// Whether there are no gradients at all: no evidence that the scale is fine, and no reason to let it grow.
    pub(crate) is_empty: bool,
    /// The first parameter whose gradient overflows.
    pub(crate) overflow: Option<String>,
    pub(crate) cause: SkipCause,
    /// Whether the loss scale has learned from them already, micro-batch by micro-batch.
    pub(crate) is_settled: bool,
    pub(crate) measures: Measures,
    /// Why they are not stepped with, although they are finite.
    pub(crate) rejected: Option<Rejection>,
}

/// Who has rejected a step, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rejection {
    pub(crate) hook: String,
    pub(crate) reason: String,
}

impl Finding {
    /// Whether they are not stepped with, and this loss scale is not the cause.
    pub(crate) fn spares_scale(&self) -> bool {
        self.rejected.is_some() || (self.overflow.is_some() && self.cause != SkipCause::Scale)
    }

    /// That of a sum of gradients: it overflows if either of the two does, and what the loss scale has not learned from the one, it has not
    /// learned from the sum.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            is_empty: self.is_empty && other.is_empty,
            cause: match self.overflow {
                Some(_) => self.cause,
                None => other.cause,
            },
            overflow: self.overflow.or(other.overflow),
            is_settled: self.is_settled && other.is_settled,
            measures: self.measures.and(other.measures),
            rejected: None,
        }
    }

    /// What the loss scale learns from them, if it does.
    pub(crate) fn evidence(&self) -> Option<Evidence> {
        match self.overflow {
            _ if self.is_empty || self.is_settled || self.spares_scale() => None,
            Some(_) => Some(Evidence::Overflow),
            None => Some(Evidence::Finite(Some(self.measures))),
        }
    }
}
