//! Jobs as Burn's custom operations, for all backends that queue operations and run them later or elsewhere.

use burn::backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr};
use burn::tensor::DType;

use super::compose::cast;
use crate::Job;
use crate::ops::{AmpOps, TensorVec};

/// Notes a job, with ids for its outputs that `new_id` gives, for a device that has a status in the dtype `rows`.
pub(super) fn describe(
    job: Job,
    inputs: &[TensorIr],
    rows: DType,
    new_id: impl Fn() -> TensorId,
) -> CustomOpIr {
    let (name, numbers) = job.encoded();
    let output = |(shape, dtype)| TensorIr::uninit(new_id(), shape, dtype);
    let outputs: Vec<TensorIr> = job.outputs(inputs, rows).into_iter().map(output).collect();
    let scalars = numbers.map(ScalarIr::Float).to_vec();
    CustomOpIr::with_scalars(name, inputs, &outputs, scalars)
}

/// Does what was queued.
pub(super) fn execute<B: BackendIr + AmpOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let job = Job::decoded(desc).unwrap_or_else(|| panic!("{desc:?} is not a job of burn-amp"));
    let inputs = (desc.inputs.iter()).map(|ir| handles.get_float_tensor::<B>(ir));
    let outputs = B::amp_run(TensorVec(inputs.collect()), job);
    for (ir, tensor) in desc.outputs.iter().zip(outputs.0) {
        // Flex has a status in f64, which a captured graph takes in f32.
        handles.register_float_tensor::<B>(&ir.id, cast::<B>(tensor, ir.dtype));
    }
}
