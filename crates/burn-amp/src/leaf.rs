use burn::{module::ParamId, tensor::Tensor};

/// Puts a new value in the place of a parameter's: a leaf, with all that the old one carried for autodiff.
pub(crate) fn replace<const D: usize>(old: Tensor<D>, new: Tensor<D>, id: ParamId) -> Tensor<D> {
    let require_grad = old.is_require_grad();
    let checkpointing = old.gradient_checkpointing_strategy();
    let distributed = old.is_autodiff() && old.is_distributed();
    let mut leaf = new;
    if let Some(strategy) = checkpointing {
        leaf = Tensor::from_inner(leaf).with_gradient_checkpointing_strategy(strategy);
    }
    if require_grad {
        leaf = leaf.require_grad();
    }
    if distributed {
        leaf = leaf.set_distributed(id);
    }
    leaf
}
