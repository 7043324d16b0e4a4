//! The backward pass of the scaled cast.

use burn::backend::{self, Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{FloatDType, Tensor};
use burn_autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn_autodiff::{Autodiff, grads::Gradients};
use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::job::{Elementwise, Job};
use crate::ops::{AmpOps, CastOps, TensorVec, first};
use crate::watch::{Cast, PassedGradient, Watch};

impl<B: Backend + AmpOps + CastOps, C: CheckpointStrategy> CastOps for Autodiff<B, C> {
    fn amp_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
        scale: TensorVec<Self>,
        watch: Option<Watch>,
    ) -> FloatTensor<Self> {
        let (from, node) = (tensor.dtype().into(), tensor.node());
        let input = tensor.into_primitive();
        // Looked at beside the gradient, in one pass, once the backward pass is here.
        let both = watch.as_ref().is_some_and(|watch| watch.of_output);
        // It has no graph: a number that happens to be on the device.
        let scale = scale.0.into_iter().map(|scale| scale.into_primitive());
        let state = State {
            factor,
            scale: scale.collect(),
            from,
            input: both.then(|| input.clone()),
            watch,
        };
        let output = B::amp_cast(input, dtype, factor, TensorVec(Vec::new()), None);
        match ScaledCast.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(state, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}

#[derive(Clone, Debug)]
struct State<B: Backend> {
    factor: f64,
    /// What else the gradient is multiplied by: one tensor or none.
    scale: Vec<FloatTensor<B>>,
    /// Of the input.
    from: FloatDType,
    watch: Option<Watch>,
    /// The input, if it is looked at too.
    input: Option<FloatTensor<B>>,
}

#[derive(Debug)]
struct ScaledCast;

impl<B: Backend + AmpOps + CastOps> Backward<B, 1> for ScaledCast {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let node = ops.parents[0].as_ref().map_or(0, |parent| parent.id.value);
        let pass = pass_at(ops.node.order);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            ops.state.backward(grad, node, pass)
        });
    }
}

thread_local! {
    /// How deep in its graph this thread was last, and in which pass.
    static HERE: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// The number of the backward pass that is at this depth of its graph. A pass goes from the loss to the leaves, so that one that is deeper than the
/// last was is another.
fn pass_at(depth: usize) -> u64 {
    static PASSES: AtomicU64 = AtomicU64::new(0);
    let (last, pass) = HERE.get();
    let pass = match depth > last {
        true => PASSES.fetch_add(1, Ordering::Relaxed) + 1,
        false => pass,
    };
    HERE.set((depth, pass));
    pass
}

impl<B: Backend + AmpOps> State<B> {
    fn backward(self, grad: FloatTensor<B>, node: u64, pass: u64) -> FloatTensor<B> {
        let (dtype, factor) = (self.from, self.factor);
        if let Some(watch) = self.watch
            && let Some(gradient) = dispatched::<B>(grad.clone())
        {
            let output = self.input.and_then(dispatched::<B>);
            let cast = Cast {
                factor,
                is_ratio: !self.scale.is_empty(),
                dtype,
                node,
                pass,
            };
            (watch.callback)(PassedGradient {
                gradient,
                output,
                cast,
            });
        }
        // A watch alone.
        if factor == 1.0 && self.scale.is_empty() && grad.dtype() == dtype.into() {
            return grad;
        }
        let tensors = [grad].into_iter().chain(self.scale);
        let product = Elementwise::MulCast { dtype, factor };
        first::<B>(tensors, Job::Elementwise(product))
    }
}

/// A backend's floats as Burn's own tensor. All backends of the extension are here but captured graphs, which nobody reads.
fn dispatched<B: Backend>(rows: FloatTensor<B>) -> Option<Tensor<1>> {
    let (rows, found): (&dyn Any, _) = (&rows, None);
    #[cfg(feature = "flex")]
    let found = found.or_else(|| downcast(rows).map(Tensor::from_primitive::<backend::Flex>));
    #[cfg(feature = "cubecl")]
    let found = found.or_else(|| downcast(rows).map(Tensor::from_primitive::<backend::Cube>));
    #[cfg(feature = "remote")]
    let found = found.or_else(|| downcast(rows).map(Tensor::from_primitive::<backend::Remote>));
    found
}

fn downcast<T: Clone + 'static>(any: &dyn Any) -> Option<T> {
    any.downcast_ref().cloned()
}
