//! What Burn's operations find in one tensor: rows of floats, and what they say.

use burn::tensor::{FloatDType, Tensor};

use crate::words::TensorStatus;

/// The floats of one tensor's row where Burn's operations have found it: four counts of two floats, in units of
/// [`COUNT_BASE`] and of one, in the order of the words; largest magnitude; sum of squares relative to it.
pub(crate) const FIELDS: usize = 10;

/// Counts travel as two floats, so that each is exact in f32.
pub(crate) const COUNT_BASE: u64 = 1 << 20;

/// Tensors of more values have several rows where Burn's operations have found them: counts fit its i32.
pub(crate) const PART: u64 = 1 << 30;

/// How many rows a tensor has where Burn's operations have found them.
pub(crate) fn parts_of(elements: u64) -> usize {
    elements.div_ceil(PART).max(1) as usize
}

/// What the rows of one tensor say.
pub(crate) fn decode(rows: &[f64]) -> TensorStatus {
    let rows = rows.chunks_exact(FIELDS).map(decode_row);
    rows.fold(TensorStatus::default(), join)
}

fn decode_row(fields: &[f64]) -> TensorStatus {
    let count = |at: usize| fields[2 * at] as u64 * COUNT_BASE + fields[2 * at + 1] as u64;
    TensorStatus {
        elements: 0,
        above: count(0),
        non_finite_before: count(1),
        non_finite: count(2),
        zeros: count(3),
        max_abs: fields[8],
        norm: fields[8] * fields[9].sqrt(),
    }
}

/// Whether a value is not finite, as 1 or 0, and the norm over all tensors.
pub(crate) fn verdict(fields: Tensor<1>) -> Tensor<1> {
    let rows = fields.dims()[0] / FIELDS;
    let fields = fields.reshape([rows, FIELDS]);
    let field = |at: usize| fields.clone().slice([0..rows, at..at + 1]).reshape([rows]);
    let found_inf = (field(4) + field(5)).max().greater_elem(0.0);
    // Relative to the largest magnitude, so that squares are in range; where all are zero, to one.
    let largest = field(8).max();
    let unit = largest.clone().mask_fill(largest.equal_elem(0.0), 1.0);
    let squares = (field(8) / unit.clone()).square() * field(9);
    let norm = squares.sum().sqrt() * unit;
    let found_inf = found_inf.int().cast(FloatDType::F32);
    Tensor::cat(vec![found_inf, norm.cast(FloatDType::F32)], 0)
}

fn join(a: TensorStatus, b: TensorStatus) -> TensorStatus {
    TensorStatus {
        elements: 0,
        above: a.above + b.above,
        non_finite_before: a.non_finite_before + b.non_finite_before,
        non_finite: a.non_finite + b.non_finite,
        zeros: a.zeros + b.zeros,
        max_abs: a.max_abs.max(b.max_abs),
        norm: a.norm.hypot(b.norm),
    }
}
