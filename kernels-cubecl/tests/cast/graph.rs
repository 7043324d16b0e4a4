//! Where in a graph it stands.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::{Factor, scaled_cast, watched_cast};

use crate::host::{autodiff, data, on_device, pairs, values};
use crate::{device::has_kernels, watch::watch};

/// What is recomputed for a backward pass may be the cast's own input, or read its output: with and without checkpoints, watched or not, by
/// factors of the host and of the device.
#[test]
fn checkpoints() {
    let (watch, received) = watch();
    for device in [autodiff(), autodiff().gradient_checkpointing()] {
        for (from, to) in pairs() {
            let factors = [Factor::from(8.0), on_device(8.0, 4.0)].into_iter();
            let both = |factor: Factor| [(factor.clone(), false), (factor, true)];
            for (factor, is_watched) in factors.flat_map(both) {
                let leaf = data(&[1.0, 2.0, -4.0], [3], from);
                let leaf = Tensor::<1>::from_data(leaf, (&device, DType::from(from)));
                let leaf = leaf.require_grad();
                let inner = (leaf.clone() * 2.0).abs();
                let output = match is_watched {
                    true => watched_cast(inner, to, factor, &watch),
                    false => scaled_cast(inner, to, factor),
                };
                assert!(output.is_tracked() && !output.is_require_grad());
                let grads = (output.clone() * output * 0.5).sum().backward();
                // |2 x| times 8, times the sign, times 2.
                assert_eq!(values(leaf.grad(&grads).unwrap()), [32.0, 64.0, -128.0]);
                let events = usize::from(is_watched && has_kernels());
                assert_eq!(received.try_iter().count(), events);
            }
        }
    }
}
