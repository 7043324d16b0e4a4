//! The chapter of the book on Burn's Learner, and further programs, whose code must compile and run.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/learner.md")]
mod learner {}

#[cfg(doctest)]
#[doc = include_str!("../programs.md")]
mod programs {}
