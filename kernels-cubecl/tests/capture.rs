//! What a capture device records is run by the kernels of a backend that knows this crate's operations: of CubeCL's
//! on Burn's default device, if that is one of CubeCL's, and else of Flex.
#![cfg(all(feature = "capture", feature = "flex"))]

use burn::backend::ir::{BackendIr, OperationIr, TensorId, TensorIr, TensorStatus};
use burn::backend::{Capture, Dispatch, Flex};
#[cfg(feature = "cubecl")]
use burn::backend::{Cube, DispatchDevice};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{
    AmpOps, Elementwise, Job, TensorList, TensorVec, blend, histogram, register_amp_ops, unscale,
    unscale_in_dtype,
};
use burn_router::{CustomOpRegistry, TensorInterpreter};
use burn_std::reader::try_read_sync;
use std::{cell::RefCell, collections::BTreeMap};

fn id<const D: usize>(tensor: &Tensor<D>) -> TensorId {
    let primitive = tensor.clone().try_into_primitive::<Capture>();
    primitive.expect("a captured tensor").id()
}

/// Captures `work`, runs it, and reads what it returns. Beside it the names of the custom operations.
fn replay(work: impl FnOnce(&Device) -> Vec<TensorId>) -> (Vec<TensorData>, Vec<String>) {
    let device = Device::capture();
    let outputs = RefCell::new(Vec::new());
    let captured = device
        .capture_scope(|scope| {
            let ids = work(&device);
            outputs.replace(ids.clone());
            scope.complete([], ids)
        })
        .expect("a captured graph");
    let (values, operations, outputs) =
        (captured.values, captured.graph.operations, outputs.take());
    let name = |operation: &OperationIr| match operation {
        OperationIr::Custom(desc) => Some(desc.id.clone()),
        _ => None,
    };
    let names = operations.iter().filter_map(name).collect();
    let read = match Device::default().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => {
            interpret::<Cube>(device.clone(), values, operations, &outputs)
        }
        _ => interpret::<Flex>(Default::default(), values, operations, &outputs),
    };
    (read, names)
}

fn interpret<B: BackendIr + AmpOps>(
    device: B::Device,
    values: BTreeMap<TensorId, TensorData>,
    operations: Vec<OperationIr>,
    outputs: &[TensorId],
) -> Vec<TensorData> {
    let mut registry = CustomOpRegistry::<B>::new();
    register_amp_ops(&mut registry);
    let mut interpreter = TensorInterpreter::with_custom_ops(device, registry);
    for (id, data) in values {
        interpreter.register_tensor_data_id(id, data);
    }
    let mut found: Vec<TensorIr> = Vec::new();
    for operation in operations {
        found.extend(operation.outputs().cloned());
        match operation {
            OperationIr::Init(_) | OperationIr::Drop(_) => (),
            operation => interpreter.register_op(operation),
        }
    }
    let read = |id: &TensorId| {
        let ir = found.iter().find(|ir| ir.id == *id);
        let mut ir = ir.expect("an output").clone();
        ir.status = TensorStatus::ReadOnly;
        let data = try_read_sync(interpreter.read_tensor_async(ir));
        data.expect("read at once").expect("a value")
    };
    outputs.iter().map(read).collect()
}

fn list(device: &Device) -> TensorList {
    let mut list = TensorList::new();
    list.push(Tensor::<1>::from_floats([6.0, 0.0, -8.0], device));
    list.push(Tensor::<2>::from_floats([[24.0, f32::INFINITY]], device));
    list
}

/// A job that takes one tensor and gives one.
fn run<const N: usize>(values: [f32; N], job: Job, device: &Device) -> Tensor<1> {
    let tensor = Tensor::<1>::from_floats(values, device).into_dispatch();
    let mut results = Dispatch::amp_run(TensorVec(vec![tensor]), job).0;
    Tensor::from_dispatch(results.remove(0))
}

#[test]
fn every_operation_can_be_captured() {
    let (values, names) = replay(|device| {
        let edge = f32::INFINITY;
        let rows = run([24.0, edge], Job::Inspect { edge }, device);
        drop(histogram(list(device)).unwrap());
        let inverse = || Tensor::<1>::from_floats([0.5], device);
        let (products, _status) = unscale(list(device), inverse()).unwrap();
        let half = Tensor::<1>::from_floats([6.0], device).cast(FloatDType::F16);
        let mut halves = TensorList::new();
        halves.push(half.clone());
        let (kept, _) = unscale_in_dtype(halves, inverse()).unwrap();
        let kept = kept.get::<1>(0).cast(FloatDType::F32);
        let sum = blend(Tensor::from_floats([1.0], device), half, 0.5, 2.0);
        // What the backward pass of a scaled cast does is one operation there.
        let (dtype, factor) = (FloatDType::F16, 1024.0);
        let cast = run(
            [0.5],
            Job::Elementwise(Elementwise::MulCast { dtype, factor }),
            device,
        );
        assert_eq!(cast.dtype(), DType::F16);
        let cast = cast.cast(FloatDType::F32);
        let outputs = [rows, products.get(0), kept, sum, cast];
        outputs.iter().map(id).collect()
    });
    // Beside four counts: the largest magnitude, a unit, and the norm in it.
    let row = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 24.0, 16.0, 1.5];
    let expected: [&[f32]; 5] = [&row, &[3.0, 0.0, -4.0], &[3.0], &[12.5], &[512.0]];
    assert_eq!(values, expected.map(TensorData::from));
    let ours = "inspect histogram unscale unscale blend mul_cast";
    let ours: Vec<_> = ours
        .split(' ')
        .map(|name| format!("amp-{}::{name}", env!("CARGO_PKG_VERSION")))
        .collect();
    assert_eq!(names, ours);
}
