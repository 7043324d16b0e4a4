//! Where in a graph it stands, and where its factor comes from.

use super::*;

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
                let leaf = Tensor::<1>::from_data([1.0, 2.0, -4.0], (&device, from));
                let leaf = leaf.require_grad();
                let inner = (leaf.clone() * 2.0).abs();
                let output = watched_cast(inner, to.into(), factor, is_watched.then_some(&watch));
                assert!(output.is_tracked() && !output.is_require_grad());
                let grads = (output.clone() * output * 0.5).sum().backward();
                // |2 x| times 8, times the sign, times 2.
                assert_eq!(values(&leaf.grad(&grads).unwrap()), [32.0, 64.0, -128.0]);
                let events = usize::from(is_watched && has_kernels());
                assert_eq!(received.try_iter().count(), events);
            }
        }
    }
}

/// What is in place of a gradient must not be in place of another's; and a scale that moves is another tensor.
#[test]
fn casts_of_one_graph_keep_their_own() {
    for (from, to) in pairs() {
        let scale = Tensor::<1>::from_floats([0.3], &Device::default());
        let moved = Factor::on_device(0.5, scale.clone() * 4.0);
        let there = [(Factor::on_device(0.5, scale), 0.15), (moved, 0.6)];
        let here = [1.0, 4.0, 0.1].map(|factor| (factor.into(), factor));
        let mut sum = tensor(&[0.0; 3], [3], to);
        let cast = |(factor, number)| {
            let leaf = tensor::<1>(&[1.0, 2.0, 3.0], [3], from).require_grad();
            sum = sum.clone() + scaled_cast(leaf.clone(), to.into(), factor);
            (leaf, number)
        };
        let leaves = Vec::from_iter(here.into_iter().chain(there).map(cast));
        let weights = [1.0, -2.0, 0.5];
        let grads = (sum * tensor(&weights, [3], to)).sum().backward();
        for (leaf, factor) in leaves {
            let found = values(&leaf.grad(&grads).unwrap());
            assert_products(&weights, &found, (from, to), factor);
        }
    }
}

/// Words of a state, tensors of other dtypes, of graphs, and of another device.
#[test]
fn where_the_factor_comes_from() {
    let words = Tensor::<1>::from_floats([0.0, 3.0, 32.0, 7.0], &Device::default());
    let tracked = Tensor::<1>::from_floats([32.0], &autodiff().gradient_checkpointing());
    let tracked = tracked.require_grad();
    let [leaf, inner] = [tracked.clone(), tracked.clone() * 1.0];
    let mut factors = vec![words.slice(s![2..3]), leaf, inner];
    for dtype in narrow_dtypes() {
        factors.push(Tensor::from_data([32.0], (&Device::default(), dtype)));
    }
    #[cfg(feature = "flex")]
    factors.push(Tensor::from_floats([32.0], &Device::flex()));
    for scale in factors {
        for (from, to) in pairs() {
            let input = tensor::<1>(&[1.0, 2.0], [2], from).require_grad();
            let factor = Factor::on_device(0.125, scale.clone());
            let output = scaled_cast(input.clone(), to.into(), factor);
            let grads = output.sum().backward();
            assert_eq!(values(&input.grad(&grads).unwrap()), [4.0; 2]);
            assert!(tracked.grad(&grads).is_none());
        }
    }
}

#[test]
#[should_panic(expected = "`scale` is one value, not 2")]
fn a_factor_is_one_value() {
    let _ = Factor::on_device(1.0, Tensor::from_floats([1.0, 2.0], &Device::default()));
}
