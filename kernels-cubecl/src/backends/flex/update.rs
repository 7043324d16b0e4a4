//! The step of an optimizer: one loop over a parameter and all that belongs to it.

use burn_flex::FlexTensor;

use crate::update::UpdateRule;

/// As [`Job::Update`](crate::Job::Update).
pub(super) fn update(tensors: Vec<FlexTensor>, rule: UpdateRule) -> Vec<FlexTensor> {
    let _ = (tensors, rule);
    todo!()
}
