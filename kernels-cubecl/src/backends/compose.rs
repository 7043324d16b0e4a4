//! The same jobs composed of Burn's own operations: for backends without kernels, and to compare kernels with.

use burn::backend::{
    Backend, Dispatch, DispatchTensor, TensorMetadata, get_or_init_device_settings,
    ops::FloatTensorOps, tensor::FloatTensor,
};
use burn::tensor::{Bool, DType, FloatDType, Int, IntDType, Shape, Tensor};

use crate::job::{Kernels, Scale, Scaling, Weights, product_dtype};
use crate::status::{COUNT_BASE, FIELDS};
use crate::{ExponentHistogram, Job, histogram::BINS};

/// Each does its job in several passes. Nothing waits for the device; Burn panics if the device has not the dtype of a tensor.
pub(crate) const COMPOSED: Kernels<DispatchTensor> = Kernels {
    pass,
    histogram,
    blend: blend::<Dispatch>,
    mul_cast: mul_cast::<Dispatch>,
    update: |_, _, rule| no_kernel(Job::Update { rule }),
    advance: |_, _, largest| no_kernel(Job::Advance { largest }),
    clip: |_| no_kernel(Job::Clip),
    decide: |_, _, rule| no_kernel(Job::Decide { rule }),
};

fn no_kernel<T>(job: Job) -> T {
    panic!("there is no kernel for {job:?} on this device")
}

pub(super) fn blend<B: Backend>(
    [target, source]: [FloatTensor<B>; 2],
    ([keep, add], found_inf): Weights<FloatTensor<B>>,
) -> FloatTensor<B> {
    let unless = found_inf.map(|found| (found, target.clone()));
    let weighted = |tensor, weight: f64| match weight {
        1.0 => tensor,
        weight => B::float_mul_scalar(tensor, weight.into()),
    };
    let source = cast::<B>(source, target.dtype());
    let sum = B::float_add(weighted(target, keep), weighted(source, add));
    let Some((found, before)) = unless else {
        return sum;
    };
    let found = B::float_reshape(found, Shape::from(vec![1; before.rank()]));
    let found = B::float_expand(found, before.shape());
    let bools = get_or_init_device_settings::<B>(&before.device()).bool_dtype;
    let found = B::float_greater_elem(found, 0.0.into(), bools);
    B::float_mask_where(sum, found, before)
}

pub(super) fn mul_cast<B: Backend>(
    tensor: FloatTensor<B>,
    dtype: FloatDType,
    (factor, scale): Scale<FloatTensor<B>>,
) -> FloatTensor<B> {
    let wide = cast::<B>(tensor, DType::F32);
    let product = match scale {
        Some(scale) => {
            // Of the tensor's rank: Fusion then makes the product a part of the kernel around it.
            let scale = B::float_expand(scale, Shape::from(vec![1; wide.rank()]));
            let scale = match factor {
                1.0 => scale,
                factor => B::float_mul_scalar(scale, factor.into()),
            };
            B::float_mul(wide, scale)
        }
        None => B::float_mul_scalar(wide, factor.into()),
    };
    cast::<B>(product, dtype.into())
}

pub(super) fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => B::float_cast(tensor, dtype.into()),
    }
}

/// Measures tensors, after scaling if there is a factor. Gives the products then, and the status.
fn pass(
    tensors: Vec<DispatchTensor>,
    factor: Scaling<DispatchTensor>,
    edge: f32,
) -> Vec<DispatchTensor> {
    let (mut rows, mut products) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let Some((factor, keep_dtype)) = &factor else {
            rows.extend(measure(tensor.clone(), tensor, edge));
            continue;
        };
        let dtype = tensor.dtype();
        let wide = cast::<Dispatch>(tensor, product_dtype(dtype, false));
        // Of the tensor's rank, so that the product need not be reshaped: NdArray's `reshape` ends at rank 6.
        let factor = cast::<Dispatch>(factor.clone(), wide.dtype());
        let factor = Dispatch::float_expand(factor, Shape::from(vec![1; wide.rank()]));
        let product = match wide.shape().num_elements() {
            // Burn 0.22.1 cannot multiply every view without values.
            0 => wide.clone(),
            _ => Dispatch::float_mul(wide.clone(), factor),
        };
        let product = cast::<Dispatch>(product, product_dtype(dtype, *keep_dtype));
        rows.extend(measure(wide, product.clone(), edge));
        products.push(product);
    }
    products.push(joined(rows));
    products
}

/// The row of one tensor, as [`Status`](crate::Status) describes it.
fn measure(before: DispatchTensor, after: DispatchTensor, edge: f32) -> Vec<Tensor<1>> {
    let (before, after) = (flat(before), flat(after));
    if after.dims() == [0] {
        let zeros = Tensor::zeros([FIELDS], (&after.device(), after.dtype()));
        return vec![zeros.slice_fill(9..10, f32::MIN_POSITIVE)];
    }
    let bad_before = count(before.is_finite().bool_not());
    let (magnitudes, bad) = finite(&after);
    let reaches = magnitudes.clone().greater_equal_elem(edge);
    let above = count(reaches.bool_or(bad.clone()));
    let zeros = count(after.clone().equal_elem(0.0));
    let max_abs = magnitudes.clone().max();
    let zero = max_abs.clone().equal_elem(0.0);
    let unit = max_abs.clone().mask_fill(zero, f32::MIN_POSITIVE);
    let norm = sum((magnitudes / unit.clone()).square()).sqrt();
    let counts = count_fields(vec![above, bad_before, count(bad), zeros], norm.dtype());
    vec![counts, max_abs, unit, norm]
}

/// Counts of each tensor by exponent, as [`Histogram`](crate::Histogram) describes them.
fn histogram(tensors: Vec<DispatchTensor>) -> DispatchTensor {
    joined(tensors.into_iter().map(count_exponents).collect())
}

/// Reads the tensor once for each exponent.
fn count_exponents(tensor: DispatchTensor) -> Tensor<1> {
    let values = flat(tensor);
    let (magnitudes, bad) = finite(&values);
    let (bad, zeros) = (count(bad), count(values.clone().equal_elem(0.0)));
    let from = |exponent: i32| count(magnitudes.clone().greater_equal_elem(2f64.powi(exponent)));
    // Those of at least 2^e, and of at least 2^(e + 1), differ by those of exponent e.
    let mut above = from(ExponentHistogram::MAX_EXPONENT + 1);
    let mut bins = vec![above.clone()];
    for exponent in ExponentHistogram::EXPONENTS.rev() {
        let at_least = from(exponent);
        bins.push(at_least.clone() - above);
        above = at_least;
    }
    let below = zeros.clone().neg() - bad.clone() + values.dims()[0] as i64 - above;
    bins.extend([below, bad, zeros]);
    bins.reverse();
    debug_assert_eq!(bins.len(), BINS);
    count_fields(bins, values.dtype())
}

/// Counts, in two floats each.
fn count_fields(counts: Vec<Tensor<1, Int>>, dtype: DType) -> Tensor<1> {
    let counts = Tensor::cat(counts, 0);
    let count = counts.dims()[0];
    let high = counts.clone().div_scalar(COUNT_BASE);
    let low = counts.remainder_scalar(COUNT_BASE);
    let fields: Tensor<2, Int> = Tensor::stack(vec![high, low], 1);
    fields.reshape([2 * count]).cast(FloatDType::from(dtype))
}

fn joined(fields: Vec<Tensor<1>>) -> DispatchTensor {
    let is_f64 = fields.iter().any(|field| field.dtype() == DType::F64);
    let dtype = if is_f64 { DType::F64 } else { DType::F32 };
    let fields = fields.into_iter().map(|field| field.cast(dtype));
    Tensor::cat(fields.collect(), 0).into_dispatch()
}

/// The values of a tensor in the dtype that it is measured in.
fn flat(tensor: DispatchTensor) -> Tensor<1> {
    let elements = tensor.shape().num_elements();
    let flat = Dispatch::float_reshape(tensor, [elements].into());
    let dtype = product_dtype(flat.dtype(), false);
    Tensor::from_dispatch(cast::<Dispatch>(flat, dtype))
}

/// The magnitudes, with zero for what is not finite, and which values are not.
fn finite(values: &Tensor<1>) -> (Tensor<1>, Tensor<1, Bool>) {
    let bad = values.clone().is_finite().bool_not();
    (values.clone().mask_fill(bad.clone(), 0.0).abs(), bad)
}

/// In 64 bits where there are integers of 64 bits.
fn count(which: Tensor<1, Bool>) -> Tensor<1, Int> {
    let ones = which.int();
    match ones.device().supports_dtype(DType::I64) {
        true => ones.cast(IntDType::I64).sum(),
        false => ones.sum(),
    }
}

/// Sums in blocks, so that rounding errors grow with the logarithm of the length and not with the length.
fn sum(values: Tensor<1>) -> Tensor<1> {
    const BLOCK: usize = 128;
    let [length] = values.dims();
    // Of what is not summed here there is always some: Burn 0.22.1 cannot read every tensor that is empty.
    let rows = (length - 1) / BLOCK;
    if rows == 0 {
        return values.sum();
    }
    let rest = values.clone().slice(rows * BLOCK..);
    let blocks = values.slice(..rows * BLOCK).reshape([rows, BLOCK]);
    sum(blocks.sum_dim(1).reshape([rows])) + rest.sum()
}
