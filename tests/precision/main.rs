//! What a program is told: of a loss in half precision, and without a logger.

mod half_loss;
mod logger;
