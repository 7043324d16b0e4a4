//! The chapter of the book on Burn's Learner, whose code must compile and run.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/learner.md")]
mod learner {}
