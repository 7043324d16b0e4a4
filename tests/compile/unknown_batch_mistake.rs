use burn::tensor::Tensor;
use burn_amp::MixedPrecision;

struct Batch {
    images: Tensor<3>,
}

fn forward(amp: &MixedPrecision, batch: Batch) -> Tensor<3> {
    amp.autocast(batch, |batch| batch.images)
}

fn main() {}
