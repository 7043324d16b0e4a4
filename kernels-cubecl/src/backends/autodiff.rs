//! The backward pass of the scaled cast.

#[cfg(feature = "cubecl")]
use burn::backend::Cube;
#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    TensorMetadata,
    ops::FloatTensorOps,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, Int, Tensor};
use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind, unary},
};

use std::any::Any;

use crate::{
    ops::{AmpOps, CastOps, TensorVec},
    watch::{Crossing, Watch},
};

impl<B: Backend + AmpOps + CastOps, C: CheckpointStrategy> CastOps for Autodiff<B, C> {
    fn amp_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
        watch: Option<Watch>,
    ) -> FloatTensor<Self> {
        let from: FloatDType = tensor.dtype().into();
        let node = tensor.node();
        let input = tensor.into_primitive();
        // Looked at beside the gradient, in one pass, once the backward pass is here.
        let watched = watch.map(|watch| {
            let input = watch.both.then(|| input.clone());
            (watch, input)
        });
        let output = B::amp_cast(input, dtype, factor, None);
        match ScaledCast.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((factor, from, watched), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        let wide = Self::float_cast(tensor, FloatDType::F32);
        Self::float_cast(Self::float_mul_scalar(wide, factor.into()), dtype)
    }
}

#[derive(Debug)]
struct ScaledCast;

impl<B: Backend + AmpOps + CastOps> Backward<B, 1> for ScaledCast {
    type State = (f64, FloatDType, Option<(Watch, Option<FloatTensor<B>>)>);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            let (factor, from, watched) = ops.state;
            if let Some((watch, output)) = watched {
                let elements = grad.shape().num_elements();
                let tensors = [grad.clone()].into_iter().chain(output).collect();
                let words = B::amp_inspect(TensorVec { tensors }, f32::INFINITY);
                if let Some(words) = dispatched::<B>(words) {
                    watch.tell(Crossing::new(factor, from, elements, words));
                }
            }
            // A watch alone.
            if factor == 1.0 && grad.dtype() == from.into() {
                return grad;
            }
            B::amp_mul_cast(grad, from, factor)
        });
    }
}

/// A backend's integers as Burn's own tensor. All backends of the extension are here.
fn dispatched<B: Backend>(words: IntTensor<B>) -> Option<Tensor<1, Int>> {
    let words: Box<dyn Any> = Box::new(words);
    #[cfg(feature = "flex")]
    let words = match words.downcast::<IntTensor<Flex>>() {
        Ok(words) => return Some(plain(DispatchTensorKind::Flex(BackendTensor::Int(*words)))),
        Err(words) => words,
    };
    #[cfg(feature = "cubecl")]
    let words = match words.downcast::<IntTensor<Cube>>() {
        Ok(words) => return Some(plain(DispatchTensorKind::Cube(BackendTensor::Int(*words)))),
        Err(words) => words,
    };
    drop(words);
    None
}

fn plain(kind: DispatchTensorKind) -> Tensor<1, Int> {
    Tensor::from_dispatch(DispatchTensor {
        kind,
        autodiff: DispatchAutodiffContext::Disabled,
    })
}
