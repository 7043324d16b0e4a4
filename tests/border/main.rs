//! The border of half precision: scopes, what crosses them, and the loss scale that gradients carry inside.

mod calibrate;
mod fault;
mod identity;
mod inputs;
mod islands;
mod mistakes;
mod nesting;
mod parameters;
mod parts;
mod refusals;
mod rescaled;
mod scale;
mod span;
mod support;
mod threads;
