//! Fusion: the pass as one lazy custom operation with any number of tensors. Nothing waits.

use burn_fusion::custom::{OperationFn, OperationIr, StreamId};
use burn_fusion::{Fusion, FusionBackend};

use super::compose::{blend, mul_cast};
use super::custom::{describe, execute};
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
