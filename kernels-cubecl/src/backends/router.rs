//! Routers: remote devices and capture. Operations are queued and run elsewhere, by a backend with kernels.

use burn::backend::TensorMetadata;
use burn::backend::ir::{BackendIr, OperationIr};
#[cfg(feature = "remote-server")]
use burn::server::RemoteServer;
use burn::tensor::{DType, FloatDType, Shape};
use burn_router::{BackendRouter, CustomOpRegistry, RouterChannel, RouterClient};

use super::custom::{describe, execute};
use crate::remote::{ROWS, rows_on};
use crate::{AmpOps, CastOps, Job, TensorVec, ops::first};

/// Registers how this crate's operations are run, with a remote server or an interpreter of captured graphs.
///
/// For `BackendServer::with_custom_ops` and `TensorInterpreter::with_custom_ops`, on the machine that has backend `B`. Clients
/// need feature `remote` (or `capture`) of this crate, the server `router` and the backend's feature.
pub fn register_amp_ops<B: BackendIr + AmpOps>(registry: &mut CustomOpRegistry<B>) {
    for job in Job::ALL {
        let (name, _) = job([0.0; 2], FloatDType::F32).encoded();
        registry.register(name, |handles, desc, _| execute::<B>(handles, desc));
    }
    registry.register(ROWS, |handles, desc, device| {
        let one = B::float_ones(Shape::from([1]), device, FloatDType::F32);
        let edge = f32::INFINITY;
        let status = first::<B>([one.clone()], Job::Inspect { edge });
        let is_wide = f64::from(status.dtype() == DType::F64);
        let answer = B::float_mul_scalar(one, is_wide.into());
        handles.register_float_tensor::<B>(&desc.outputs[0].id, answer);
    });
}

impl<C: RouterChannel> CastOps for BackendRouter<C> {}

impl<C: RouterChannel> AmpOps for BackendRouter<C> {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let client = tensors.0[0].client.clone();
        let inputs: Vec<_> = tensors.0.into_iter().map(|t| t.into_ir()).collect();
        let rows = rows_on(&client.device());
        let desc = describe(job, &inputs, rows, || client.create_empty_handle());
        TensorVec(client.register(OperationIr::Custom(desc)))
    }
}

/// Burn's server of these devices, which knows this crate's operations: what a client's [`check_server`](crate::check_server) asks for.
///
/// All devices are Flex, or all of CubeCL's; Burn's `serve` refuses others. More operations go in by `with_custom_op`.
#[cfg(feature = "remote-server")]
pub fn remote_server(devices: impl IntoIterator<Item = burn::tensor::Device>) -> RemoteServer {
    let devices: Vec<_> = devices.into_iter().map(|device| device.inner()).collect();
    let first = devices.first().cloned();
    let server = RemoteServer::new(devices);
    #[allow(unreachable_patterns)]
    match first.as_ref().map(|device| device.as_dispatch()) {
        #[cfg(feature = "flex")]
        Some(burn::backend::DispatchDevice::Flex(_)) => with_amp_ops::<burn::backend::Flex>(server),
        #[cfg(feature = "cubecl")]
        Some(burn::backend::DispatchDevice::Cube(_)) => with_amp_ops::<burn::backend::Cube>(server),
        _ => server,
    }
}

#[cfg(all(feature = "remote-server", any(feature = "flex", feature = "cubecl")))]
fn with_amp_ops<B: BackendIr + AmpOps>(server: RemoteServer) -> RemoteServer {
    let mut registry = CustomOpRegistry::<B>::new();
    register_amp_ops(&mut registry);
    server.with_custom_ops(registry)
}
