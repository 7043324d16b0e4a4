//! The two sides of a step that `burn-amp-pipeline` makes on another thread.

pub use crate::{
    lock::quietly,
    optimizer::pipelined::{Made, SentStep, TrainingSide, make_step, with_culprit},
};
