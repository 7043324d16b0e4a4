//! Casts and sums, value by value: units go over a tensor in steps of all of them.

use burn::tensor::{DType, FloatDType};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    batch::{args, cubes},
    memory::{Laid, may_overwrite},
    plan::Limits,
};
use crate::kernel;

/// Vectors that a unit reads, where there are cubes enough.
const VECTORS_PER_UNIT: usize = 4;

/// Of f16, bf16 or f32 to any of them; `scale` has one value, of f32.
pub(super) fn mul_cast(
    tensor: CubeTensor,
    dtype: FloatDType,
    factor: f64,
    scale: Option<CubeTensor>,
) -> CubeTensor {
    let source = Laid::dense(tensor);
    let product = source.product(dtype.into());
    let weights = [0.0, factor as f32];
    weigh(&source, None, Some(&product), weights, scale, None);
    product.tensor
}

/// The sum of f32 `target` and f16, bf16 or f32 `source`, weighted; the target where `found_inf` is above 0.
pub(super) fn blend(
    target: CubeTensor,
    source: CubeTensor,
    keep: f32,
    add: f32,
    found_inf: Option<CubeTensor>,
) -> CubeTensor {
    if target.meta.num_elements() == 0 {
        return target;
    }
    let mut target = Laid::dense(into_contiguous(target));
    let mut source = Laid::dense(into_contiguous(source));
    let vector = target.vector.min(source.vector);
    (target.vector, source.vector) = (vector, vector);
    let sum = (!may_overwrite(&target.tensor)).then(|| target.product(DType::F32));
    let (held, made) = (Some(&target), sum.as_ref());
    weigh(&source, held, made, [keep, add], None, found_inf);
    sum.unwrap_or(target).tensor
}

/// Launches the kernel of this name, of which `scale` and `found_inf` are one value or none. All lie in one order and have vectors of one width; without
/// `output`, nobody else holds the target.
fn weigh(
    source: &Laid,
    target: Option<&Laid>,
    output: Option<&Laid>,
    [keep, add]: [f32; 2],
    scale: Option<CubeTensor>,
    found_inf: Option<CubeTensor>,
) {
    let client = &source.tensor.client;
    let limits = Limits::of(client);
    let vectors = source.span / source.vector;
    let count = vectors.div_ceil(limits.units as usize * VECTORS_PER_UNIT);
    let made = output.or(target).expect("an output, or a target");
    by_dtype!(narrow source.tensor.dtype, S => by_dtype!(narrow made.tensor.dtype, O => {
        // SAFETY: all are of one length, beyond which units do nothing; nobody else holds what is overwritten.
        unsafe {
            kernel::weigh::launch_unchecked::<S, O>(
                client,
                cubes(count.clamp(1, limits.cubes())),
                CubeDim::new_1d(limits.units),
                source.vector,
                source.whole(),
                target.map(Laid::whole).into_iter().collect(),
                output.map(Laid::whole).into_iter().collect(),
                keep,
                add,
                args(scale),
                args(found_inf),
            );
        }
    }))
}
