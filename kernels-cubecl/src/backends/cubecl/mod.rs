//! CubeCL: groups of tensors of one kind, a launch for each group, and one for the last reduction.

mod batch;
mod elementwise;
mod launch;
mod memory;
mod plan;
#[cfg(test)]
#[path = "../../../tests/units/limits.rs"]
mod tests;
mod update;

use burn::tensor::{DType, FloatDType};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::{compose::by_burn, fusion::Located};
use crate::{
    ops::{AmpOps, CastOps, Job, TensorVec, taken},
    place::Place,
};
use elementwise::{blend, mul_cast};
use launch::{Scale, advance, decide, histogram, pass};
use plan::Limits;

impl CastOps for CubeBackend {}

impl Located for CubeBackend {
    fn place(tensor: CubeTensor) -> Place {
        let handle = &tensor.handle;
        let memory = handle.memory.descriptor().id.value;
        Place(memory, handle.offset_start.unwrap_or(0))
    }
}

impl AmpOps for CubeBackend {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let mut tensors = tensors.0;
        let limits = Limits::of(&tensors[0].client);
        TensorVec(match job {
            Job::Unscale { keep_dtype, edge } => {
                let inverse = tensors.pop().expect("the inverse is last");
                let scale = Scale {
                    inverse,
                    keep_dtype,
                };
                pass(tensors, Some(scale), edge, &limits)
            }
            Job::Inspect { edge } => pass(tensors, None, edge, &limits),
            Job::Histogram => vec![histogram(tensors, &limits)],
            Job::Blend { keep, add } => {
                let ([target, source], mut rest) = taken(tensors);
                vec![blend(target, source, keep as f32, add as f32, rest.pop())]
            }
            // Burn's multiplication of f32 is one launch too, and in place where it may be.
            Job::MulCast {
                dtype: FloatDType::F32,
                ..
            } if tensors[0].dtype == DType::F32 => {
                by_burn::<Self>(tensors, job).into_iter().collect()
            }
            Job::MulCast { dtype, factor } => {
                let ([tensor], mut rest) = taken(tensors);
                vec![mul_cast(tensor, dtype, factor, rest.pop())]
            }
            Job::Update { rule } => update::update(tensors, rule, &limits),
            Job::Advance => {
                let ([state, rows], mut rest) = taken(tensors);
                vec![advance(state, rows, rest.pop())]
            }
            Job::Decide { rule } => {
                let ([undecided, state], clip) = taken(tensors);
                vec![decide(undecided, state, clip, rule)]
            }
        })
    }
}
