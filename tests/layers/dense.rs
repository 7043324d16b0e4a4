//! Linear and Embedding.

use burn::{
    nn::{Embedding, EmbeddingConfig, LinearConfig, LinearLayout},
    tensor::{Int, Tensor},
};

use crate::support::{check, tensor};

#[test]
fn linear() {
    check(
        |device| LinearConfig::new(6, 5).init(device),
        &[],
        |linear, precision, device| linear.forward(precision.cast(tensor([7, 6], device))),
    );
}

/// Stores its weight transposed, through Burn's own mappers at load and save.
#[test]
fn linear_by_columns() {
    check(
        |device| {
            let config = LinearConfig::new(6, 5).with_layout(LinearLayout::Col);
            config.init(device)
        },
        &[],
        |linear, precision, device| linear.forward(precision.cast(tensor([7, 6], device))),
    );
}

#[test]
fn embedding() {
    check(
        |device| EmbeddingConfig::new(9, 4).init(device),
        &[],
        |embedding: &Embedding, precision, device| {
            let tokens = Tensor::<2, Int>::from_data([[0, 3, 8], [3, 1, 7]], device);
            // Integers pass the cast.
            embedding.forward(precision.cast(tokens))
        },
    );
}
