//! Fusion: the pass as one lazy custom operation with any number of tensors. Nothing waits.

use burn::backend::{
    ir::CustomOpIr,
    tensor::{FloatTensor, IntTensor},
};
use burn_fusion::{
    Client, ExecutionError, Fusion, FusionBackend, FusionRuntime, FusionTensor,
    custom::{HandleContainer, Operation, OperationIr, StreamId},
};
use std::marker::PhantomData;

use crate::{
    custom::{Note, execute, noted},
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
};

/// Burn's own operations: Fusion puts them into one kernel with what comes before and after. So it does with a blend.
impl<B: FusionBackend + CastOps> CastOps for Fusion<B> {}

impl<B: FusionBackend + AmpOps + CastOps> AmpOps for Fusion<B> {
    noted!(register::<B>);
}

fn register<B: FusionBackend + AmpOps + CastOps>(
    client: &Client<B::FusionRuntime>,
    desc: CustomOpIr,
) -> Vec<FusionTensor<B::FusionRuntime>> {
    let operation = Custom::<B> {
        desc: desc.clone(),
        backend: PhantomData,
    };
    client.register(StreamId::current(), OperationIr::Custom(desc), operation)
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
        execute::<B>(handles, &self.desc);
        Ok(())
    }
}
