//! Routers: remote devices and capture. Operations are queued and run elsewhere, by a backend with kernels.

use burn::backend::ir::{BackendIr, OperationIr};
use burn::tensor::FloatDType;
use burn_router::{BackendRouter, CustomOpRegistry, RouterChannel, RouterClient};

use super::custom::{describe, execute};
use crate::{AmpOps, CastOps, Job, TensorVec};

/// Registers how this crate's operations are run, with a remote server or an interpreter of captured graphs.
///
/// For `BackendServer::with_custom_ops` and `TensorInterpreter::with_custom_ops`, on the machine that has backend `B`. Clients
/// need feature `remote` (or `capture`) of this crate, the server `router` and the backend's feature.
pub fn register_amp_ops<B: BackendIr + AmpOps>(registry: &mut CustomOpRegistry<B>) {
    for job in Job::all(FloatDType::F32, [0.0; 2]) {
        let (name, _) = job.encoded();
        registry.register(name, |handles, desc, _| execute::<B>(handles, desc));
    }
}

impl<C: RouterChannel> CastOps for BackendRouter<C> {}

impl<C: RouterChannel> AmpOps for BackendRouter<C> {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let client = tensors.0[0].client.clone();
        let inputs: Vec<_> = tensors.0.into_iter().map(|t| t.into_ir()).collect();
        let desc = describe(job, &inputs, || client.create_empty_handle());
        TensorVec(client.register(OperationIr::Custom(desc)))
    }
}
