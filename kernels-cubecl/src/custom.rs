//! The operations as Burn's custom operations: how each is written down, and how it is run from that, for all backends
//! that note operations and run them later or elsewhere.

use burn::backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr};
#[cfg(feature = "router")]
use burn::tensor::FloatDType;
use burn::tensor::{DType, Shape};

use crate::{
    histogram::BINS,
    ops::{AmpOps, CastOps, TensorVec},
    status::WORDS,
};

const UNSCALE: &str = "amp::unscale";
const INSPECT: &str = "amp::inspect";
const HISTOGRAM: &str = "amp::histogram";
const VERDICT: &str = "amp::verdict";
const BLEND: &str = "amp::blend";
const MUL_CAST: &str = "amp::mul_cast";

/// The names of all of them, for a registry.
#[cfg(feature = "router")]
pub(crate) const IDS: [&str; 6] = [UNSCALE, INSPECT, HISTOGRAM, VERDICT, BLEND, MUL_CAST];

/// The status is the last output, the inverse the last input.
pub(crate) fn unscale(
    mut tensors: Vec<TensorIr>,
    inverse: TensorIr,
    keep_dtype: bool,
    edge: f32,
    mut new_id: impl FnMut() -> TensorId,
) -> CustomOpIr {
    let status = status_shape(&tensors);
    let dtype = |dtype| match dtype {
        dtype if keep_dtype => dtype,
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let mut outputs: Vec<TensorIr> = tensors
        .iter()
        .map(|tensor| TensorIr::uninit(new_id(), tensor.shape.clone(), dtype(tensor.dtype)))
        .collect();
    outputs.push(TensorIr::uninit(new_id(), status, DType::I32));
    tensors.push(inverse);
    let scalars = vec![ScalarIr::Bool(keep_dtype), ScalarIr::Float(f64::from(edge))];
    CustomOpIr::with_scalars(UNSCALE, &tensors, &outputs, scalars)
}

pub(crate) fn inspect(
    tensors: Vec<TensorIr>,
    edge: f32,
    mut new_id: impl FnMut() -> TensorId,
) -> CustomOpIr {
    let words = TensorIr::uninit(new_id(), status_shape(&tensors), DType::I32);
    let scalars = vec![ScalarIr::Float(f64::from(edge))];
    CustomOpIr::with_scalars(INSPECT, &tensors, &[words], scalars)
}

pub(crate) fn histogram(
    tensors: Vec<TensorIr>,
    mut new_id: impl FnMut() -> TensorId,
) -> CustomOpIr {
    let words = TensorIr::uninit(new_id(), [2 * BINS].into(), DType::I32);
    CustomOpIr::new(HISTOGRAM, &tensors, &[words])
}

pub(crate) fn verdict(words: TensorIr, mut new_id: impl FnMut() -> TensorId) -> CustomOpIr {
    let verdict = TensorIr::uninit(new_id(), [2].into(), DType::F32);
    CustomOpIr::new(VERDICT, &[words], &[verdict])
}

/// Fusion makes its own kernels of elementwise operations.
#[cfg(feature = "router")]
pub(crate) fn blend(
    target: TensorIr,
    source: TensorIr,
    keep: f64,
    add: f64,
    mut new_id: impl FnMut() -> TensorId,
) -> CustomOpIr {
    let sum = TensorIr::uninit(new_id(), target.shape.clone(), target.dtype);
    let scalars = vec![ScalarIr::Float(keep), ScalarIr::Float(add)];
    CustomOpIr::with_scalars(BLEND, &[target, source], &[sum], scalars)
}

#[cfg(feature = "router")]
pub(crate) fn mul_cast(
    tensor: TensorIr,
    dtype: FloatDType,
    factor: f64,
    mut new_id: impl FnMut() -> TensorId,
) -> CustomOpIr {
    let product = TensorIr::uninit(new_id(), tensor.shape.clone(), dtype.into());
    let scalars = vec![ScalarIr::Float(factor)];
    CustomOpIr::with_scalars(MUL_CAST, &[tensor], &[product], scalars)
}

fn status_shape(tensors: &[TensorIr]) -> Shape {
    [tensors.len() * WORDS].into()
}

/// Runs what one of the functions above has written down.
pub(crate) fn execute<B: BackendIr + AmpOps + CastOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let output = desc.outputs.last().expect("an output");
    let last = output.id;
    match (desc.id.as_str(), desc.scalars.as_slice()) {
        (UNSCALE, [ScalarIr::Bool(keep_dtype), ScalarIr::Float(edge)]) => {
            let (inverse, inputs) = desc.inputs.split_last().expect("the inverse");
            let tensors = floats::<B>(handles, inputs);
            let inverse = handles.get_float_tensor::<B>(inverse);
            let unscaled = B::amp_unscale(tensors, inverse, *keep_dtype, *edge as f32);
            for (ir, tensor) in desc.outputs.iter().zip(unscaled.tensors.tensors) {
                handles.register_float_tensor::<B>(&ir.id, tensor);
            }
            handles.register_int_tensor::<B>(&last, unscaled.status);
        }
        (INSPECT, [ScalarIr::Float(edge)]) => {
            let tensors = floats::<B>(handles, &desc.inputs);
            handles.register_int_tensor::<B>(&last, B::amp_inspect(tensors, *edge as f32));
        }
        (HISTOGRAM, []) => {
            let tensors = floats::<B>(handles, &desc.inputs);
            handles.register_int_tensor::<B>(&last, B::amp_histogram(tensors));
        }
        (VERDICT, []) => {
            let words = handles.get_int_tensor::<B>(&desc.inputs[0]);
            handles.register_float_tensor::<B>(&last, B::amp_verdict(words));
        }
        (BLEND, [ScalarIr::Float(keep), ScalarIr::Float(add)]) => {
            let target = handles.get_float_tensor::<B>(&desc.inputs[0]);
            let source = handles.get_float_tensor::<B>(&desc.inputs[1]);
            let sum = B::amp_blend(target, source, *keep, *add);
            handles.register_float_tensor::<B>(&last, sum);
        }
        (MUL_CAST, [ScalarIr::Float(factor)]) => {
            let tensor = handles.get_float_tensor::<B>(&desc.inputs[0]);
            let product = B::amp_mul_cast(tensor, output.dtype.into(), *factor);
            handles.register_float_tensor::<B>(&last, product);
        }
        (id, scalars) => panic!("`{id}` with {scalars:?} is not an operation of burn-amp"),
    }
}

fn floats<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    inputs: &[TensorIr],
) -> TensorVec<B> {
    let tensors = inputs.iter().map(|ir| handles.get_float_tensor::<B>(ir));
    TensorVec {
        tensors: tensors.collect(),
    }
}
