//! One check that every layer goes through, and what it is made of.

mod check;
mod data;
mod logs;
mod panics;
mod read;

pub use check::{check, precision};
pub use data::{fill, tensor};
pub use logs::logs;
pub use panics::panic_message;
pub use read::{gradients, parameters, relative_error, values};
