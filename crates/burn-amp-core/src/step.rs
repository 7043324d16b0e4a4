//! What a step is made of, in its order.

pub mod hook;
pub(crate) mod options;
pub(crate) mod pending;
