//! The same job composed of Burn's own operations: for backends without kernels, and to compare kernels with.
//!
//! The functions at the root of the crate choose it where it is needed. Those here do not ask whether the device has
//! the dtypes: Burn's operations panic where it has not.

use burn::{
    backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps},
    tensor::{Bool, DType, FloatDType, Int, Shape, Tensor},
};
use std::ops::Range;

use crate::{
    fields::{COUNT_BASE, FIELDS, PART, parts_of},
    histogram::{BINS, ExponentHistogram, Histogram},
    list::TensorList,
    status::Status,
};

/// Multiplies every tensor by `inverse` and measures the products, in several passes.
///
/// Products are new, in f32 for f16, bf16 and f32 tensors, and in f64 for f64 ones, of the tensors' shapes. `inverse`
/// has shape `[1]`, is f32, and lives on the tensors' device. Does not wait for the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn unscale(list: TensorList, inverse: Tensor<1>) -> (TensorList, Status) {
    multiply(list, inverse, false)
}

/// As [`unscale`], but products keep the dtypes of their factors, and are measured after they were rounded to them.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn unscale_in_dtype(list: TensorList, inverse: Tensor<1>) -> (TensorList, Status) {
    multiply(list, inverse, true)
}

pub(crate) fn multiply(
    list: TensorList,
    inverse: Tensor<1>,
    keep_dtype: bool,
) -> (TensorList, Status) {
    let inverse = inverse.inner();
    let (edge, elements) = (list.edge, list.elements());
    let (mut rows, mut products) = (Vec::new(), Vec::new());
    for tensor in list.tensors {
        let (dtype, working) = (tensor.dtype(), working(tensor.dtype()));
        let wide = Dispatch::float_cast(tensor, working);
        // Of the tensor's rank, so that the product need not be reshaped: NdArray's `reshape` ends at rank 6.
        let factor = inverse.clone().cast(working).into_dispatch();
        let factor = Dispatch::float_expand(factor, Shape::from(vec![1; wide.rank()]));
        let mut product = match wide.shape().num_elements() {
            // Burn 0.22.1 cannot multiply every view without values.
            0 => wide.clone(),
            _ => Dispatch::float_mul(wide.clone(), factor),
        };
        if keep_dtype && dtype != working.into() {
            product = Dispatch::float_cast(product, dtype.into());
        }
        measure(wide, product.clone(), edge, &mut rows);
        products.push(product);
    }
    (TensorList::of(products), status(rows, elements))
}

/// Measures every tensor as it is, in several passes that write none of them. Does not wait for the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn inspect(list: TensorList) -> Status {
    let (edge, elements) = (list.edge, list.elements());
    let mut rows = Vec::new();
    for tensor in list.tensors {
        measure(tensor.clone(), tensor, edge, &mut rows);
    }
    status(rows, elements)
}

/// Counts the values of all tensors by binary exponent. Reads every tensor once for each exponent. Does not wait for
/// the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn histogram(list: TensorList) -> Histogram {
    let mut counts: Vec<Tensor<1, Int>> = Vec::new();
    for values in list.tensors.into_iter().flat_map(parts) {
        let [elements] = values.dims();
        let (magnitudes, bad) = finite(&values);
        let zeros = count(values.equal_elem(0.0));
        let from =
            |exponent: i32| count(magnitudes.clone().greater_equal_elem(2f64.powi(exponent)));
        // Those of at least 2^e, and of at least 2^(e + 1), differ by those of exponent e.
        let mut above = from(ExponentHistogram::MAX_EXPONENT + 1);
        let mut bins = vec![above.clone()];
        for exponent in ExponentHistogram::EXPONENTS.rev() {
            let at_least = from(exponent);
            bins.push(at_least.clone() - above);
            above = at_least;
        }
        // A part has no more values than an i32 can count.
        let below = zeros.clone().neg() - bad.clone() + elements as i32 - above;
        bins.extend([below, bad, zeros]);
        bins.reverse();
        debug_assert_eq!(bins.len(), BINS);
        counts.extend(bins);
    }
    match counts.is_empty() {
        true => Histogram::default(),
        false => Histogram::of_rows(Tensor::cat(counts, 0)),
    }
}

/// Adds a row of [`FIELDS`] for each part of a tensor.
fn measure(before: DispatchTensor, after: DispatchTensor, edge: f32, rows: &mut Vec<Tensor<1>>) {
    for (before, after) in parts(before).into_iter().zip(parts(after)) {
        if after.dims() == [0] {
            rows.push(Tensor::zeros([FIELDS], (&after.device(), after.dtype())));
            continue;
        }
        let (_, bad_before) = finite(&before);
        let (magnitudes, bad) = finite(&after);
        let above = match edge.is_finite() {
            true => {
                // Zero stands for what is not finite, and is at or above an edge of zero.
                let reaches = magnitudes.clone().greater_equal_elem(edge);
                count(reaches.bool_and(after.clone().is_finite())) + bad.clone()
            }
            false => bad.clone(),
        };
        let zeros = count(after.clone().equal_elem(0.0));
        let max_abs = magnitudes.clone().max();
        let divisor = max_abs.clone();
        let divisor = divisor.clone().mask_fill(divisor.equal_elem(0.0), 1.0);
        let squares = sum((magnitudes / divisor).square());
        let dtype: FloatDType = after.dtype().into();
        for count in [above, bad_before, bad, zeros] {
            let base = COUNT_BASE as i32;
            rows.push(count.clone().div_scalar(base).cast(dtype));
            rows.push(count.remainder_scalar(base).cast(dtype));
        }
        rows.extend([max_abs, squares]);
    }
}

fn status(mut rows: Vec<Tensor<1>>, elements: Vec<u64>) -> Status {
    if rows.is_empty() {
        return Status::default();
    }
    // One f64 tensor among f32 ones must not lose its range on the way.
    if rows.iter().any(|row| row.dtype() == DType::F64) {
        let wide = rows.into_iter().map(|row| row.cast(FloatDType::F64));
        rows = wide.collect();
    }
    Status::of_fields(Tensor::cat(rows, 0), elements)
}

/// The values of a tensor in the dtype that it is measured in, in parts whose counts an i32 can hold.
fn parts(tensor: DispatchTensor) -> Vec<Tensor<1>> {
    let elements = tensor.shape().num_elements();
    let flat = Tensor::<1>::from_dispatch(Dispatch::float_reshape(tensor, [elements].into()));
    let flat = flat.clone().cast(working(flat.dtype()));
    match parts_of(elements as u64) {
        1 => vec![flat],
        count => (0..count)
            .map(|part| flat.clone().slice(range(part, elements)))
            .collect(),
    }
}

fn range(part: usize, elements: usize) -> Range<usize> {
    let part_length = PART as usize;
    part * part_length..elements.min((part + 1) * part_length)
}

/// The magnitudes, with zero for what is not finite, and how many values are not.
fn finite(values: &Tensor<1>) -> (Tensor<1>, Tensor<1, Int>) {
    let bad = values.clone().is_finite().bool_not();
    let magnitudes = values.clone().mask_fill(bad.clone(), 0.0).abs();
    (magnitudes, count(bad))
}

fn count(which: Tensor<1, Bool>) -> Tensor<1, Int> {
    which.int().sum()
}

fn working(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// Sums in blocks, so that rounding errors grow with the logarithm of the length and not with the length.
fn sum(mut values: Tensor<1>) -> Tensor<1> {
    const BLOCK: usize = 128;
    loop {
        let [length] = values.dims();
        let rows = length / BLOCK;
        if rows <= 1 {
            return values.sum();
        }
        let whole = rows * BLOCK;
        let blocks = values
            .clone()
            .slice(0..whole)
            .reshape([rows, BLOCK])
            .sum_dim(1);
        let sums = blocks.reshape([rows]);
        values = match length - whole {
            0 => sums,
            _ => Tensor::cat(vec![sums, values.slice(whole..length)], 0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_tensor_and_no_count_wraps() {
        for elements in [0, 1, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, (1 << 32) + 1] {
            let ranges: Vec<_> = (0..parts_of(elements as u64))
                .map(|part| range(part, elements))
                .collect();
            assert_eq!(ranges[0].start, 0);
            assert_eq!(ranges.last().map(|last| last.end), Some(elements));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(ranges.iter().all(|range| range.len() <= i32::MAX as usize));
        }
    }
}
