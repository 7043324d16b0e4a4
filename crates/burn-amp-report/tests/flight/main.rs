//! The flight recorder: what it writes, when, and that it changes nothing.

mod training;
mod writes;
