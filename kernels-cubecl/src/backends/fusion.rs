//! Fusion: the pass as one lazy custom operation with any number of tensors. Nothing waits.

use burn::backend::{
    ir::{CustomOpIr, TensorIr},
    tensor::{FloatTensor, IntTensor},
};
use burn_fusion::{
    Client, ExecutionError, Fusion, FusionBackend, FusionRuntime, FusionTensor,
    custom::{HandleContainer, Operation, OperationIr, StreamId},
};
use std::marker::PhantomData;

use crate::{
    custom,
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
};

/// Burn's own operations: Fusion puts them into one kernel with what comes before and after.
impl<B: FusionBackend + CastOps> CastOps for Fusion<B> {}

impl<B: FusionBackend + AmpOps + CastOps> AmpOps for Fusion<B> {
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let client = inverse.client.clone();
        let new_id = || client.create_empty_handle();
        let desc = custom::unscale(irs(tensors), inverse.into_ir(), keep_dtype, edge, new_id);
        let mut tensors = register::<B>(&client, desc);
        let status = tensors.pop().expect("the status is the last output");
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
        let client = tensors.tensors[0].client.clone();
        let desc = custom::inspect(irs(tensors), edge, || client.create_empty_handle());
        only(register::<B>(&client, desc))
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let client = tensors.tensors[0].client.clone();
        let desc = custom::histogram(irs(tensors), || client.create_empty_handle());
        only(register::<B>(&client, desc))
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        let client = words.client.clone();
        let desc = custom::verdict(words.into_ir(), || client.create_empty_handle());
        only(register::<B>(&client, desc))
    }
}

type Registered<B> = FusionTensor<<B as FusionBackend>::FusionRuntime>;

fn irs<B: FusionBackend>(tensors: TensorVec<Fusion<B>>) -> Vec<TensorIr> {
    tensors.tensors.into_iter().map(|t| t.into_ir()).collect()
}

fn register<B: FusionBackend + AmpOps + CastOps>(
    client: &Client<B::FusionRuntime>,
    desc: CustomOpIr,
) -> Vec<Registered<B>> {
    let operation = Custom::<B> {
        desc: desc.clone(),
        backend: PhantomData,
    };
    client.register(StreamId::current(), OperationIr::Custom(desc), operation)
}

fn only<T>(mut outputs: Vec<T>) -> T {
    outputs.pop().expect("an output")
}

#[derive(Debug)]
struct Custom<B> {
    desc: CustomOpIr,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + AmpOps + CastOps> Operation<B::FusionRuntime> for Custom<B> {
    fn execute(
        &self,
        handles: &mut HandleContainer<<B::FusionRuntime as FusionRuntime>::FusionHandle>,
    ) -> Result<(), ExecutionError> {
        custom::execute::<B>(handles, &self.desc);
        Ok(())
    }
}
