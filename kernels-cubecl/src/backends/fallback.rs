//! The same job composed of Burn's own operations: for backends without kernels, and to compare kernels with.
//!
//! The functions at the root of the crate choose it where it is needed. Those here do not ask whether the device has
//! the dtypes: Burn's operations panic where it has not.

use burn::{
    backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps},
    tensor::{DType, FloatDType, Int, Shape, Tensor},
};

use crate::{
    histogram::{ExponentHistogram, Histogram},
    list::{Entry, TensorList},
    run::Way,
    status::{Status, TensorStatus},
};

/// Counts travel as two floats, `high * COUNT_BASE + low`: each stays exact in f32, up to 2^40 values.
const COUNT_BASE: u64 = 1 << 20;

/// Floats for each tensor: four counts of two, largest magnitude, sum of squares relative to it.
const FIELDS: usize = 10;

/// Multiplies every tensor by `inverse` and measures the products, in several passes.
///
/// Products are new, in f32 for f16, bf16 and f32 tensors, and in f64 for f64 ones, of the tensors' shapes. `inverse`
/// has shape `[1]`, is f32, and lives on the tensors' device. Does not wait for the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn unscale(list: TensorList, inverse: Tensor<1>) -> (TensorList, Status) {
    let edge = list.edge;
    let (products, composed) = unscale_all(list, inverse, false, edge);
    (products, composed.into_status())
}

/// Measures every tensor as it is, in several passes that write none of them. Does not wait for the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn inspect(list: TensorList) -> Status {
    let edge = list.edge;
    inspect_all(list, edge).into_status()
}

/// Counts the values of all tensors by binary exponent. Reads every tensor once for each exponent. Does not wait for
/// the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype of a tensor.
pub fn histogram(list: TensorList) -> Histogram {
    Histogram {
        words: None,
        composed: histogram_all(list),
        counted: ExponentHistogram::default(),
    }
}

pub(crate) fn unscale_all(
    list: TensorList,
    inverse: Tensor<1>,
    keep_dtype: bool,
    edge: f32,
) -> (TensorList, Composed) {
    let inverse = inverse.inner();
    let mut measures = Measures::default();
    let mut products = TensorList::new();
    for entry in list.tensors {
        let (dtype, elements) = (working(entry.dtype), entry.elements);
        let wide = Dispatch::float_cast(entry.tensor, dtype);
        let tensor = match elements {
            0 => {
                measures.elements.push(0);
                match keep_dtype {
                    true => Dispatch::float_cast(wide, entry.dtype.into()),
                    false => wide,
                }
            }
            _ => {
                // Of the tensor's rank, so that the product need not be reshaped: NdArray's `reshape` ends at rank 6.
                let factor = inverse.clone().cast(dtype).into_dispatch();
                let factor = Dispatch::float_expand(factor, Shape::from(vec![1; wide.rank()]));
                let mut product = Dispatch::float_mul(wide.clone(), factor);
                if keep_dtype {
                    product = Dispatch::float_cast(product, entry.dtype.into());
                }
                let after = flatten(product.clone(), elements).cast(dtype);
                measures.add(flatten(wide, elements), after, edge);
                product
            }
        };
        products.tensors.push(Entry {
            dtype: tensor.dtype(),
            elements,
            tensor,
        });
    }
    (products, measures.finish())
}

pub(crate) fn inspect_all(list: TensorList, edge: f32) -> Composed {
    let mut measures = Measures::default();
    for entry in list.tensors {
        if entry.elements == 0 {
            measures.elements.push(0);
            continue;
        }
        let flat = flatten(entry.tensor, entry.elements).cast(working(entry.dtype));
        measures.add(flat.clone(), flat, edge);
    }
    measures.finish()
}

/// [`BINS`](crate::histogram::BINS) counts for each tensor that has values.
pub(crate) fn histogram_all(list: TensorList) -> Option<Tensor<1, Int>> {
    let mut counts: Vec<Tensor<1, Int>> = Vec::new();
    for entry in list.tensors {
        if entry.elements == 0 {
            continue;
        }
        let flat = flatten(entry.tensor, entry.elements).cast(working(entry.dtype));
        let finite = flat.clone().is_finite();
        let zeros = flat.clone().equal_scalar(0.0).int().sum();
        let non_finite = finite.clone().bool_not().int().sum();
        let magnitudes = flat.mask_fill(finite.bool_not(), 0.0).abs();
        let from = |exponent: i32| {
            let edge = 2f64.powi(exponent);
            magnitudes.clone().greater_equal_scalar(edge).int().sum()
        };
        // Those of at least 2^e, and of at least 2^(e + 1), differ by those of exponent e.
        let mut above = from(ExponentHistogram::MAX_EXPONENT + 1);
        let mut bins = vec![above.clone()];
        for exponent in ExponentHistogram::EXPONENTS.rev() {
            let at_least = from(exponent);
            bins.push(at_least.clone() - above);
            above = at_least;
        }
        let nonzero = zeros.clone().neg() - non_finite.clone() + entry.elements as i32;
        bins.push(nonzero - above);
        bins.extend([non_finite, zeros]);
        bins.reverse();
        counts.extend(bins);
    }
    (!counts.is_empty()).then(|| Tensor::cat(counts, 0))
}

pub(super) fn flatten(tensor: DispatchTensor, elements: usize) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::float_reshape(tensor, [elements].into()))
}

fn working(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

#[derive(Default)]
struct Measures {
    fields: Vec<Tensor<1>>,
    elements: Vec<u64>,
}

impl Measures {
    fn add(&mut self, before: Tensor<1>, after: Tensor<1>, edge: f32) {
        let [elements] = after.dims();
        self.elements.push(elements as u64);
        let dtype: FloatDType = after.dtype().into();
        let finite = after.clone().is_finite();
        let before = before.is_finite().bool_not().int().sum();
        let non_finite = finite.clone().bool_not().int().sum();
        let zeros = after.clone().equal_scalar(0.0).int().sum();
        let above = match edge.is_finite() {
            true => {
                let finite = finite.clone();
                let reaches = after.clone().abs().greater_equal_scalar(edge);
                reaches.bool_and(finite).int().sum() + non_finite.clone()
            }
            false => non_finite.clone(),
        };
        let magnitudes = after.mask_fill(finite.bool_not(), 0.0).abs();
        let max_abs = magnitudes.clone().max();
        let divisor = max_abs
            .clone()
            .mask_fill(max_abs.clone().equal_scalar(0.0), 1.0);
        let squares = sum((magnitudes / divisor).square());
        for count in [above, before, non_finite, zeros] {
            self.fields.extend(split(count, dtype));
        }
        self.fields.extend([max_abs, squares]);
    }

    fn finish(self) -> Composed {
        let mut fields = self.fields;
        // One f64 tensor among f32 ones must not lose its range on the way.
        if fields.iter().any(|field| field.dtype() == DType::F64) {
            fields = fields
                .into_iter()
                .map(|field| field.cast(FloatDType::F64))
                .collect();
        }
        let fields = (!fields.is_empty()).then(|| Tensor::cat(fields, 0));
        Composed {
            fields,
            elements: self.elements,
        }
    }
}

/// [`FIELDS`] floats for each tensor that has values, and the tensors' numbers of values.
#[derive(Clone, Debug)]
pub(crate) struct Composed {
    fields: Option<Tensor<1>>,
    elements: Vec<u64>,
}

impl Composed {
    fn into_status(self) -> Status {
        Status {
            fused: None,
            host: Vec::new(),
            order: vec![Way::Composed; self.elements.len()],
            composed: self,
        }
    }

    pub(crate) fn read(self) -> Vec<TensorStatus> {
        decode(self.fields, self.elements)
    }
}

fn split(count: Tensor<1, Int>, dtype: FloatDType) -> [Tensor<1>; 2] {
    let base = COUNT_BASE as i32;
    let high = count.clone().div_scalar(base).cast(dtype);
    let low = count.remainder_scalar(base).cast(dtype);
    [high, low]
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

fn decode(fields: Option<Tensor<1>>, elements: Vec<u64>) -> Vec<TensorStatus> {
    let values: Vec<f64> = fields.map_or_else(Vec::new, |fields| {
        fields.into_data().iter::<f64>().collect()
    });
    let measured = elements.iter().filter(|elements| **elements > 0).count();
    assert_eq!(values.len(), measured * FIELDS, "a row for each tensor");
    let mut rows = values.chunks_exact(FIELDS);
    let count = |high: f64, low: f64| high as u64 * COUNT_BASE + low as u64;
    elements
        .into_iter()
        .map(|elements| match elements {
            0 => TensorStatus::default(),
            _ => {
                let row = rows.next().expect("a row for each tensor");
                TensorStatus {
                    elements,
                    above: count(row[0], row[1]),
                    non_finite_before: count(row[2], row[3]),
                    non_finite: count(row[4], row[5]),
                    zeros: count(row[6], row[7]),
                    max_abs: row[8],
                    norm: row[8] * row[9].sqrt(),
                }
            }
        })
        .collect()
}
