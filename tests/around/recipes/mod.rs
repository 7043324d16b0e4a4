//! The recipes of the book, each on a small problem.

mod discard;
mod lbfgs;
mod penalty;
mod scaler_per_loss;
mod shared_losses;
