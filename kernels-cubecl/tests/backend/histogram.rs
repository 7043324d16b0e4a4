//! Counts by binary exponent, which every [`crate::case::Case`] compares.

use super::*;

/// Asserts that the counts are those of these values.
pub fn assert_counts(found: &ExponentHistogram, tensors: &[TensorData]) {
    let (least, most) = ExponentHistogram::EXPONENTS.into_inner();
    let powers = Vec::from_iter((least..=most + 1).map(|exponent| 2f64.powi(exponent)));
    let mut non_finite = 0;
    // Of zeros, and by exponent, those outside the range one beyond it; beside each, how many it may have more or less because a device
    // takes subnormal values for zero.
    let mut counts = vec![[0; 2]; (most - least + 4) as usize];
    for data in tensors {
        for value in widen(data) {
            if !value.is_finite() {
                non_finite += 1;
                continue;
            }
            let free = may_flush(data.dtype(), data.dtype(), value, value);
            // By comparison, not by the bits.
            let place = match value == 0.0 {
                true => 0,
                false => 1 + powers.partition_point(|power| *power <= value.abs()),
            };
            counts[place][usize::from(free)] += 1;
            counts[0][1] += u64::from(free);
        }
    }
    let elements = tensors.iter().map(|data| data.num_elements() as u64).sum();
    let totals = (found.elements(), found.non_finite());
    assert_eq!(totals, (elements, non_finite));
    let inside = found.iter().map(|(_, count)| count);
    let first = [found.zeros(), found.below()].into_iter();
    let bins = first.chain(inside).chain([found.above()]);
    for (bin, (found, [sure, free])) in bins.zip(counts).enumerate() {
        let range = sure..=sure + free;
        assert!(range.contains(&found), "bin {bin}: {found} of {range:?}");
    }
}
