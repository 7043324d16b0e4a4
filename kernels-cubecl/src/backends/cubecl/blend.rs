use burn::{
    backend::TensorMetadata,
    tensor::{DType, bf16, f16},
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    elementwise::spread,
    group::{buffer, may_overwrite},
};
use crate::kernel;

/// The sum of f32 `target` and f16, bf16 or f32 `source`, weighted.
pub(super) fn run(target: CubeTensor, source: CubeTensor, keep: f32, add: f32) -> CubeTensor {
    match source.dtype {
        DType::F16 => blend::<f16>(target, source, keep, add),
        DType::BF16 => blend::<bf16>(target, source, keep, add),
        _ => blend::<f32>(target, source, keep, add),
    }
}

fn blend<S: Float + CubeElement>(
    target: CubeTensor,
    source: CubeTensor,
    keep: f32,
    add: f32,
) -> CubeTensor {
    let (target, source) = (into_contiguous(target), into_contiguous(source));
    let client = target.client.clone();
    let elements = target.meta.num_elements();
    let (count, dim, vector) = spread(&client, elements);
    if may_overwrite(&target) {
        // SAFETY: both are contiguous and of one length, beyond which units do nothing; nobody else holds `target`.
        unsafe {
            kernel::blend_in_place::launch_unchecked::<S>(
                &client,
                count,
                dim,
                vector,
                buffer(&target, vector),
                buffer(&source, vector),
                keep,
                add,
            );
        }
        return target;
    }
    let handle = client.empty(elements * size_of::<f32>());
    let output = CubeTensor::new_contiguous(
        client.clone(),
        target.device.clone(),
        target.shape(),
        handle,
        DType::F32,
    );
    // SAFETY: all three are contiguous and of one length, beyond which units do nothing.
    unsafe {
        kernel::blend_anew::launch_unchecked::<S>(
            &client,
            count,
            dim,
            vector,
            buffer(&target, vector),
            buffer(&source, vector),
            buffer(&output, vector),
            keep,
            add,
        );
    }
    output
}
