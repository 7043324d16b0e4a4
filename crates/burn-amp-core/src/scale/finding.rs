//! What a pass over gradients has found, as a step is counted by it. Knows no tensors.

use crate::scale::loss_scale::{Evidence, Measures, SkipCause};

/// What unscaled gradients say of the loss scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// Whether there are no gradients at all: no evidence that the scale is fine, and no reason to let it grow.
    pub(crate) is_empty: bool,
    /// The first parameter whose gradient overflows.
    pub(crate) overflow: Option<String>,
    pub(crate) cause: SkipCause,
    /// Whether they have moved the loss scale already, micro-batch by micro-batch.
    pub(crate) is_resolved: bool,
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

    /// That of a sum of gradients: it overflows if either of the two does, and unless both have moved the loss
    /// scale already, the sum has not.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            is_empty: self.is_empty && other.is_empty,
            cause: match self.overflow {
                Some(_) => self.cause,
                None => other.cause,
            },
            overflow: self.overflow.or(other.overflow),
            is_resolved: self.is_resolved && other.is_resolved,
            measures: self.measures.and(other.measures),
            rejected: None,
        }
    }

    /// What moves the loss scale, if they do.
    pub(crate) fn evidence(&self) -> Option<Evidence> {
        match self.overflow {
            _ if self.is_empty || self.is_resolved || self.spares_scale() => None,
            Some(_) => Some(Evidence::Overflow),
            None => Some(Evidence::Finite(Some(self.measures))),
        }
    }
}
