//! Only memory that nobody else holds may be written. Other handles of a list's memory, every [`crate::case::Case`] looks at.

use super::*;

fn bytes(tensor: &Tensor<1>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// Though Burn looks at the values later.
pub fn what_was_read(system: &System) {
    for (dtype, length) in dtypes().into_iter().flat_map(|of| [(of, 7), (of, 1 << 12)]) {
        let tensor: Tensor<1> = random(dtype, 140, [length]);
        let before = bytes(&tensor);
        let read = tensor.clone().into_data();
        let product = system.unscale(list_of([tensor]), 0.5);
        assert!(*read.as_bytes() == before, "{dtype:?} of {length}");
        drop(product);
    }
}

/// Those that are still held keep their values while later ones are made, and memory of those that are not is free to
/// be used again.
pub fn products(system: &System) {
    for dtype in dtypes() {
        let step = |seed| {
            let tensor: Tensor<1> = random(dtype, seed, [(1 << 16) + 5]);
            system.unscale(list_of([tensor.clone()]), 0.5).0.get(0)
        };
        let expected: Vec<_> = (0..3).map(|seed| bytes(&step(150 + seed))).collect();
        let held: Vec<_> = (0..3).map(|seed| step(150 + seed)).collect();
        drop(step(160));
        for (held, expected) in held.iter().zip(expected) {
            assert!(bytes(held) == expected, "{dtype:?} was overwritten");
        }
    }
}
