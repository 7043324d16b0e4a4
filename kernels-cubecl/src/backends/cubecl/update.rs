//! The step of an optimizer: launches over parameters and all that belongs to them.

use burn_cubecl::tensor::CubeTensor;

use super::plan::Limits;
use crate::update::UpdateRule;

/// As [`Job::Update`](crate::Job::Update).
pub(super) fn update(
    tensors: Vec<CubeTensor>,
    rule: UpdateRule,
    limits: &Limits,
) -> Vec<CubeTensor> {
    let _ = (tensors, rule, limits);
    todo!()
}
