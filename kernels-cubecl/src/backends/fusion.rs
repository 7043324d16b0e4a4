//! Fusion: the pass as one lazy custom operation with any number of tensors. Nothing waits.

use burn::backend::ir::TensorIr;
use burn::{
    backend::{
        TensorMetadata,
        ops::FloatTensorOps,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, FloatDType, Shape},
};
use burn_fusion::{
    ExecutionError, Fusion, FusionBackend, FusionRuntime,
    custom::{CustomOpIr, HandleContainer, Operation, OperationIr, StreamId},
};
use std::marker::PhantomData;

use crate::{
    histogram::BINS,
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
    status::WORDS,
};

/// Burn's own operations: Fusion puts them into one kernel with what comes before and after.
impl<B: FusionBackend + CastOps> CastOps for Fusion<B> {}

impl<B: FusionBackend + AmpOps> AmpOps for Fusion<B> {
    fn amp_unscale(tensors: TensorVec<Self>, inverse: FloatTensor<Self>) -> UnscaledVec<Self> {
        let client = inverse.client.clone();
        let status = status_shape(&tensors);
        let mut outputs: Vec<TensorIr> = (tensors.tensors.iter())
            .map(|tensor| {
                TensorIr::uninit(client.create_empty_handle(), tensor.shape(), DType::F32)
            })
            .collect();
        outputs.push(TensorIr::uninit(
            client.create_empty_handle(),
            status,
            DType::I32,
        ));
        let mut inputs: Vec<TensorIr> = tensors.tensors.into_iter().map(|t| t.into_ir()).collect();
        inputs.push(inverse.into_ir());

        let desc = CustomOpIr::new("amp::unscale", &inputs, &outputs);
        let operation = Unscale::<B> {
            desc: desc.clone(),
            backend: PhantomData,
        };
        let mut outputs =
            client.register(StreamId::current(), OperationIr::Custom(desc), operation);
        let status = outputs.pop().expect("the status is the last output");
        UnscaledVec {
            tensors: TensorVec { tensors: outputs },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let words = status_shape(&tensors);
        look("amp::inspect", tensors, words, B::amp_inspect)
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let words = Shape::from([2 * BINS]);
        look("amp::histogram", tensors, words, B::amp_histogram)
    }

    /// Elementwise operations are best left to Fusion: it puts them into one kernel with what comes before and after.
    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        let weighted = |tensor, weight: f64| match weight {
            1.0 => tensor,
            weight => Self::float_mul_scalar(tensor, weight.into()),
        };
        let source = match source.dtype() {
            DType::F32 => source,
            _ => Self::float_cast(source, FloatDType::F32),
        };
        Self::float_add(weighted(target, keep), weighted(source, add))
    }
}

/// Registers an operation that reads tensors and returns words.
fn look<B: FusionBackend + AmpOps>(
    name: &'static str,
    tensors: TensorVec<Fusion<B>>,
    words: Shape,
    look: fn(TensorVec<B>) -> IntTensor<B>,
) -> IntTensor<Fusion<B>> {
    let client = tensors.tensors[0].client.clone();
    let output = TensorIr::uninit(client.create_empty_handle(), words, DType::I32);
    let inputs: Vec<TensorIr> = tensors.tensors.into_iter().map(|t| t.into_ir()).collect();

    let desc = CustomOpIr::new(name, &inputs, &[output]);
    let operation = Look::<B> {
        desc: desc.clone(),
        look,
    };
    let mut outputs = client.register(StreamId::current(), OperationIr::Custom(desc), operation);
    outputs.pop().expect("the words are the only output")
}

fn status_shape<B: FusionBackend>(tensors: &TensorVec<Fusion<B>>) -> Shape {
    Shape::from([tensors.tensors.len() * WORDS])
}

#[derive(Debug)]
struct Unscale<B> {
    desc: CustomOpIr,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + AmpOps> Operation<B::FusionRuntime> for Unscale<B> {
    fn execute(
        &self,
        handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>,
    ) -> Result<(), ExecutionError> {
        let (inverse, inputs) = self
            .desc
            .inputs
            .split_last()
            .expect("the inverse is the last input");
        let (status, outputs) = self
            .desc
            .outputs
            .split_last()
            .expect("the status is the last output");
        let tensors = (inputs.iter())
            .map(|ir| handles.get_float_tensor::<B>(ir))
            .collect();
        let inverse = handles.get_float_tensor::<B>(inverse);
        let unscaled = B::amp_unscale(TensorVec { tensors }, inverse);
        for (ir, tensor) in outputs.iter().zip(unscaled.tensors.tensors) {
            handles.register_float_tensor::<B>(&ir.id, tensor);
        }
        handles.register_int_tensor::<B>(&status.id, unscaled.status);
        Ok(())
    }
}

struct Look<B: FusionBackend> {
    desc: CustomOpIr,
    look: fn(TensorVec<B>) -> IntTensor<B>,
}

impl<B: FusionBackend> std::fmt::Debug for Look<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look").field("desc", &self.desc).finish()
    }
}

impl<B: FusionBackend + AmpOps> Operation<B::FusionRuntime> for Look<B> {
    fn execute(
        &self,
        handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>,
    ) -> Result<(), ExecutionError> {
        let tensors = (self.desc.inputs.iter())
            .map(|ir| handles.get_float_tensor::<B>(ir))
            .collect();
        let words = (self.look)(TensorVec { tensors });
        handles.register_int_tensor::<B>(&self.desc.outputs[0].id, words);
        Ok(())
    }
}
