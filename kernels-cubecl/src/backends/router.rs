//! Routers: remote devices and capture. Operations are noted and run elsewhere, by a backend with kernels.

use burn::{
    backend::{
        ir::{BackendIr, CustomOpIr, OperationIr, TensorIr},
        tensor::{FloatTensor, IntTensor},
    },
    tensor::FloatDType,
};
use burn_router::{BackendRouter, CustomOpRegistry, RouterChannel, RouterClient, RouterTensor};

use crate::{
    custom,
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
};

/// Tells a remote server, or an interpreter of captured graphs, how this crate's operations are run.
///
/// For `BackendServer::with_custom_ops` and `TensorInterpreter::with_custom_ops`, on the machine that has backend `B`. Clients
/// need feature `remote` (or `capture`) of this crate, the server `router` and the backend's feature.
pub fn register_amp_ops<B: BackendIr + AmpOps + CastOps>(registry: &mut CustomOpRegistry<B>) {
    for id in custom::IDS {
        registry.register(id, |handles, desc, _| custom::execute::<B>(handles, desc));
    }
}

impl<C: RouterChannel> AmpOps for BackendRouter<C> {
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let client = inverse.client.clone();
        let new_id = || client.create_empty_handle();
        let desc = custom::unscale(irs(tensors), inverse.into_ir(), keep_dtype, edge, new_id);
        let mut tensors = client.register(OperationIr::Custom(desc));
        let status = tensors.pop().expect("the status is the last output");
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
        let client = tensors.tensors[0].client.clone();
        let desc = custom::inspect(irs(tensors), edge, || client.create_empty_handle());
        only(&client, desc)
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let client = tensors.tensors[0].client.clone();
        let desc = custom::histogram(irs(tensors), || client.create_empty_handle());
        only(&client, desc)
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        let client = words.client.clone();
        let desc = custom::verdict(words.into_ir(), || client.create_empty_handle());
        only(&client, desc)
    }

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        let client = target.client.clone();
        let new_id = || client.create_empty_handle();
        let desc = custom::blend(target.into_ir(), source.into_ir(), keep, add, new_id);
        only(&client, desc)
    }
}

impl<C: RouterChannel> CastOps for BackendRouter<C> {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        let client = tensor.client.clone();
        let new_id = || client.create_empty_handle();
        only(
            &client,
            custom::mul_cast(tensor.into_ir(), dtype, factor, new_id),
        )
    }
}

fn irs<C: RouterChannel>(tensors: TensorVec<BackendRouter<C>>) -> Vec<TensorIr> {
    tensors.tensors.into_iter().map(|t| t.into_ir()).collect()
}

fn only<C: RouterClient>(client: &C, desc: CustomOpIr) -> RouterTensor<C> {
    let mut outputs = client.register(OperationIr::Custom(desc));
    outputs.pop().expect("an output")
}
