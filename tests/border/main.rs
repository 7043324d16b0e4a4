//! The border of half precision: scopes, what crosses them, and the loss scale that gradients carry inside.

mod fault;
mod identity;
mod inputs;
mod islands;
mod nesting;
mod parameters;
mod refusals;
mod scale;
mod support;
mod threads;
mod torch_run;
mod training;
