//! Routers: remote devices and capture. Operations are noted and run elsewhere, by a backend with kernels.

use burn::{
    backend::{
        ir::{BackendIr, CustomOpIr, OperationIr},
        tensor::{FloatTensor, IntTensor},
    },
    tensor::FloatDType,
};
use burn_router::{BackendRouter, CustomOpRegistry, RouterChannel, RouterClient, RouterTensor};

use crate::{
    custom::{IDS, Note, execute, noted},
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
};

/// Tells a remote server, or an interpreter of captured graphs, how this crate's operations are run.
///
/// For `BackendServer::with_custom_ops` and `TensorInterpreter::with_custom_ops`, on the machine that has backend `B`. Clients
/// need feature `remote` (or `capture`) of this crate, the server `router` and the backend's feature.
pub fn register_amp_ops<B: BackendIr + AmpOps + CastOps>(registry: &mut CustomOpRegistry<B>) {
    for id in IDS {
        registry.register(id, |handles, desc, _| execute::<B>(handles, desc));
    }
}

impl<C: RouterChannel> AmpOps for BackendRouter<C> {
    noted!(register);

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        let client = target.client.clone();
        let note = Note(|| client.create_empty_handle());
        let desc = note.blend(target.into_ir(), source.into_ir(), keep, add);
        register(&client, desc).remove(0)
    }
}

impl<C: RouterChannel> CastOps for BackendRouter<C> {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        let client = tensor.client.clone();
        let note = Note(|| client.create_empty_handle());
        let desc = note.mul_cast(tensor.into_ir(), dtype.into(), factor);
        register(&client, desc).remove(0)
    }
}

fn register<C: RouterClient>(client: &C, desc: CustomOpIr) -> Vec<RouterTensor<C>> {
    client.register(OperationIr::Custom(desc))
}
