//! CubeCL: groups of tensors of one kind, a launch for each group, and one for the last reduction.

/// Does something with a dtype as a type.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            burn::tensor::DType::F16 => {
                type $T = burn::tensor::f16;
                $body
            }
            burn::tensor::DType::BF16 => {
                type $T = burn::tensor::bf16;
                $body
            }
            burn::tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            dtype => panic!("tensors are f16, bf16 or f32 here, not {dtype:?}"),
        }
    };
}

mod elementwise;
mod launch;
mod memory;
mod plan;
#[cfg(test)]
#[path = "../../../tests/units/limits.rs"]
mod tests;
mod update;

use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::fusion::Located;
use crate::{
    ops::{AmpOps, CastOps, Job, TensorVec},
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

fn two(tensors: Vec<CubeTensor>) -> [CubeTensor; 2] {
    (tensors.try_into()).unwrap_or_else(|_| panic!("as many tensors as the job takes"))
}

impl AmpOps for CubeBackend {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let mut tensors = tensors.0;
        let limits = Limits::of(&tensors[0].client);
        let mut last = || tensors.pop().expect("as many tensors as the job takes");
        TensorVec(match job {
            Job::Unscale { keep_dtype, edge } => {
                let inverse = last();
                let scale = Scale {
                    inverse,
                    keep_dtype,
                };
                pass(tensors, Some(scale), edge, &limits)
            }
            Job::Inspect { edge } => pass(tensors, None, edge, &limits),
            Job::Histogram => vec![histogram(tensors, &limits)],
            Job::Blend { keep, add } => {
                let found_inf = tensors.split_off(2).pop();
                let [target, source] = two(tensors);
                vec![blend(target, source, keep as f32, add as f32, found_inf)]
            }
            Job::MulCast { dtype, factor } => {
                let tensor = tensors.remove(0);
                vec![mul_cast(tensor, dtype, factor, tensors.pop())]
            }
            Job::Update { rule } => update::update(tensors, rule, &limits),
            Job::Advance => {
                let mut tensors = tensors.into_iter();
                let mut next = || tensors.next().expect("a state and rows");
                vec![advance(next(), next(), tensors.next())]
            }
            Job::Decide { rule } => {
                let clip = tensors.split_off(2);
                let [undecided, state] = two(tensors);
                vec![decide(undecided, state, clip, rule)]
            }
        })
    }
}
