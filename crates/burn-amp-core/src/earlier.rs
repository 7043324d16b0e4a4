//! What earlier versions of this crate stored under other names.

/// States of two hooks, and what their tensors were called, from before all hooks were stored in one way.
pub(crate) const HOOKS: [(&str, &str); 2] = [("ema", "average"), ("guard", "")];

/// The kind of a record of one of them alone.
pub(crate) const ONE_HOOK: &str = "ema";

/// The rule of a region whose record has a `factor` beside its schedule: that was its bound, and is the ceiling of the rule's schedule now.
pub(crate) const BOUNDED_RULE: &str = "AdaLoss";
