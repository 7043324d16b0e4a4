//! What a capture device records is run by the kernels of a backend that knows this crate's operations: of CubeCL's
//! on Burn's default device, if that is one of CubeCL's, and else of Flex.
#![cfg(all(feature = "capture", feature = "flex"))]

use burn::backend::ir::{BackendIr, OperationIr, TensorId, TensorIr, TensorStatus};
use burn::backend::{Capture, Dispatch, Flex};
#[cfg(feature = "cubecl")]
use burn::backend::{Cube, DispatchDevice};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::*;
use burn_router::{CustomOpRegistry, TensorInterpreter};
use burn_std::reader::try_read_sync;
use std::collections::BTreeMap;

/// Captures `work`, runs it, and reads what it returns. Beside it the names of the custom operations.
fn replay(work: impl FnOnce(&Device) -> Vec<Tensor<1>>) -> (Vec<TensorData>, Vec<String>) {
    let device = Device::capture();
    let id = |tensor: Tensor<1>| tensor.try_into_primitive::<Capture>().unwrap().id();
    let mut outputs = Vec::new();
    let captured = device.capture_scope(|scope| {
        outputs = work(&device).into_iter().map(id).collect();
        scope.complete([], outputs.clone())
    });
    let captured = captured.expect("a captured graph");
    let (values, operations) = (captured.values, captured.graph.operations);
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
        if !matches!(operation, OperationIr::Init(_) | OperationIr::Drop(_)) {
            interpreter.register_op(operation);
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

/// A job that takes one tensor and gives one.
fn run(tensor: Tensor<1>, job: Job) -> Tensor<1> {
    let mut results = Dispatch::amp_run(TensorVec(vec![tensor.into_dispatch()]), job).0;
    Tensor::from_dispatch(results.remove(0))
}

#[test]
fn every_operation_can_be_captured() {
    let (values, names) = replay(|device| {
        let tensor = |values: &[f32]| Tensor::<1>::from_floats(values, device);
        let list = || {
            let mut list = TensorList::new();
            list.push(tensor(&[6.0, 0.0, -8.0]));
            list.push(tensor(&[24.0, f32::INFINITY]).reshape([1, 2]));
            list
        };
        let edge = f32::INFINITY;
        let rows = run(tensor(&[24.0, edge]), Job::Inspect { edge });
        drop(histogram(list()).unwrap());
        let (products, _status) = unscale(list(), tensor(&[0.5])).unwrap();
        let half = tensor(&[6.0]).cast(FloatDType::F16);
        let mut halves = TensorList::new();
        halves.push(half.clone());
        let (kept, _) = unscale_in_dtype(halves, tensor(&[0.5])).unwrap();
        let kept = kept.get::<1>(0).cast(FloatDType::F32);
        let sum = blend(tensor(&[1.0]), half, 0.5, 2.0);
        // What the backward pass of a scaled cast does is one operation there.
        let (dtype, factor) = (FloatDType::F16, 1024.0);
        let cast = Job::Elementwise(Elementwise::MulCast { dtype, factor });
        let cast = run(tensor(&[0.5]), cast);
        assert_eq!(cast.dtype(), DType::F16);
        vec![rows, products.get(0), kept, sum, cast.cast(FloatDType::F32)]
    });
    // Beside four counts: the largest magnitude, a unit, and the norm in it.
    let row = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 24.0, 16.0, 1.5];
    let expected: [&[f32]; 5] = [&row, &[3.0, 0.0, -4.0], &[3.0], &[12.5], &[512.0]];
    assert_eq!(values, expected.map(TensorData::from));
    let version = env!("CARGO_PKG_VERSION");
    let ours = [
        "inspect",
        "histogram",
        "unscale",
        "unscale",
        "blend",
        "mul_cast",
    ];
    assert_eq!(names, ours.map(|name| format!("amp-{version}::{name}")));
}
