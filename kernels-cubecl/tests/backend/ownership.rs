//! Only memory that nobody else holds may be written.

use burn::tensor::Tensor;

use crate::{create::random, device::dtypes, system::System, views::planes};

fn bytes<const D: usize>(tensor: &Tensor<D>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// Products that are still held keep their values while later ones are made, and memory of those that are not is free to
/// be used again.
pub fn held_products_are_kept(system: &System) {
    for dtype in dtypes() {
        let step = |seed| {
            let tensor: Tensor<1> = random(dtype, seed, [(1 << 16) + 5]);
            system.unscale_one(tensor.clone(), 0.5).0
        };
        let expected: Vec<_> = (0..3).map(|seed| bytes(&step(150 + seed))).collect();
        let held: Vec<_> = (0..3).map(|seed| step(150 + seed)).collect();
        drop(step(160));
        for (held, expected) in held.iter().zip(expected) {
            assert!(bytes(held) == expected, "{dtype:?} was overwritten");
        }
    }
}

/// The other handle is a view: of all of the memory, of a part, or repeated.
pub fn other_views_are_kept(system: &System) {
    for dtype in dtypes() {
        let source = || random::<2>(dtype, 110, [41, 43]);
        for (index, view) in planes().into_iter().enumerate() {
            // The whole is unscaled while the view is alive.
            let whole = source();
            let other = view(whole.clone());
            let before = bytes(&other);
            drop(system.unscale_one(whole, 0.5));
            assert!(bytes(&other) == before, "{dtype:?}, view {index}");
            // The view is unscaled while the whole is alive.
            let whole = source();
            let before = bytes(&whole);
            drop(system.unscale_one(view(whole.clone()), 0.5));
            assert!(bytes(&whole) == before, "{dtype:?}, whole of view {index}");
        }
    }
}

/// What Burn has read stays, though it looks at the values later.
pub fn what_was_read_is_kept(system: &System) {
    for dtype in dtypes() {
        for length in [7, 1 << 12] {
            let tensor: Tensor<1> = random(dtype, 140, [length]);
            let before = bytes(&tensor);
            let read = tensor.clone().into_data();
            let product = system.unscale_one(tensor, 0.5);
            assert!(*read.as_bytes() == before, "{dtype:?} of {length}");
            drop(product);
        }
    }
}
