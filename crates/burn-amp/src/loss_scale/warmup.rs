//! A cap on the scale that doubles, in equal parts of the first iterations, and is then lifted.

/// The cap of an iteration; none once the warm-up is over.
pub(super) fn cap(iteration: u32, iterations: u32, first: f64, levels: u32) -> Option<f32> {
    (iteration < iterations).then(|| {
        let doubled = u64::from(levels) * u64::from(iteration) / u64::from(iterations);
        (first * 2f64.powi(doubled as i32)) as f32
    })
}
