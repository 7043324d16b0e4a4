//! Fusion: the pass as one lazy custom operation with any number of tensors. Nothing waits.

#[cfg(feature = "cubecl")]
use burn::backend::tensor::FloatTensor;
use burn_fusion::custom::{OperationFn, OperationIr, StreamId};
use burn_fusion::{Fusion, FusionBackend};

use super::compose::{blend, mul_cast};
use super::custom::{describe, execute};
#[cfg(feature = "cubecl")]
use crate::BufferAddress;
use crate::remote::rows_on;
use crate::{AmpOps, CastOps, Job, TensorVec};

impl<B: FusionBackend + CastOps> CastOps for Fusion<B> {}

impl<B: FusionBackend + AmpOps> AmpOps for Fusion<B> {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let client = tensors.0[0].client.clone();
        // Fusion puts Burn's own operations into one kernel with what comes before and after.
        if let Job::Elementwise(what) = job {
            let made = what.run(tensors.0, blend::<Self>, mul_cast::<Self>);
            return TensorVec(vec![made]);
        }
        let inputs: Vec<_> = tensors.0.into_iter().map(|t| t.into_ir()).collect();
        let rows = rows_on(client.device());
        let desc = describe(job, &inputs, rows, || client.create_empty_handle());
        let ir = OperationIr::Custom(desc.clone());
        let work = OperationFn(move |handles: &mut _| {
            execute::<B>(handles, &desc);
            Ok(())
        });
        TensorVec(client.register(StreamId::current(), ir, work))
    }
}

/// Backends that say where their tensors' values are.
#[cfg(feature = "cubecl")]
pub(crate) trait Located: burn::backend::Backend {
    fn address(tensor: FloatTensor<Self>) -> BufferAddress;
}

#[cfg(feature = "cubecl")]
impl<B: FusionBackend + Located> Located for Fusion<B> {
    fn address(tensor: FloatTensor<Self>) -> BufferAddress {
        let client = tensor.client.clone();
        B::address(client.resolve_tensor_float::<B>(tensor))
    }
}
