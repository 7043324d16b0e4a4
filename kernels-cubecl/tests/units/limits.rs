//! The pass and the step under limits that no device here has, and over padded rows, on the default device.

use burn::tensor::{DType, Device, TensorData};
use burn::{backend::DispatchDevice, backend::ops::FloatTensorOps};
use burn_cubecl::{CubeBackend, CubeDevice, tensor::CubeTensor};
use burn_std::{Metadata, Shape, Strides, reader::try_read_sync};

#[path = "../backend/skipped.rs"]
mod skipped;

use super::batch::{Laid, padding};
use super::launch::{pass, update};
use super::plan::{Limits, units};
use crate::status::{TensorStatus, decode};
use crate::step::{ROW, UpdateRule};

/// None where the default device is not one of CubeCL's: then the test says that it is skipped.
fn device() -> Option<CubeDevice> {
    #[allow(unreachable_patterns)] // which backends there are beside it depends on Burn's features
    match Device::default().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => {
            skipped::skipped("not a device of CubeCL's");
            None
        }
    }
}

fn values(seed: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| (((index * 7919 + seed) % 2003) as f32 - 1000.0) / 64.0;
    (0..length).map(value).collect()
}

fn upload(values: Vec<f32>, half: bool, device: &CubeDevice) -> CubeTensor {
    let dtype = if half { DType::F16 } else { DType::F32 };
    let data = TensorData::new(values.clone(), [values.len()]).convert_dtype(dtype);
    CubeBackend::float_from_data(data, device)
}

fn read(tensor: CubeTensor) -> Vec<f32> {
    let data = try_read_sync(CubeBackend::float_into_data(tensor));
    data.unwrap().unwrap().iter().collect()
}

/// Multiplies by a factor, and says what is found.
fn run(
    factor: f32,
    tensors: Vec<CubeTensor>,
    keep_dtype: bool,
    limits: &Limits,
) -> (Vec<Vec<f32>>, Vec<TensorStatus>) {
    let count = |tensor: &CubeTensor| tensor.meta.num_elements() as u64;
    let elements: Vec<u64> = tensors.iter().map(count).collect();
    let factor = upload(vec![factor], false, &tensors[0].device);
    let results = pass(limits, tensors, Some((factor, keep_dtype)), 4.0);
    let mut products: Vec<Vec<f32>> = results.into_iter().map(read).collect();
    let status = products.pop().unwrap().into_iter().map(f64::from);
    (products, decode(&elements, status))
}

/// Where shaders run on the CPU, a cube is one plane: it runs as one vector, and waits for nobody.
#[test]
fn in_software_a_cube_is_one_plane() {
    let Some(device) = device() else { return };
    let client = upload(vec![0.0], false, &device).client;
    let limits = Limits::of(&client);
    let is_software = client.properties().identity.physical.is_none();
    if !is_software || !format!("{device:?}").contains("Wgpu") {
        return skipped::skipped("shaders do not run on the CPU");
    }
    let plane = client.properties().hardware.plane_size_min;
    assert_eq!((limits.units, units(&client, 1024)), (plane, plane));
    assert_eq!((limits.max_tensors, limits.max_shared), (4, 1 << 16));
}

/// Fewer values or buffers than a device here allows a launch.
fn narrowed(limits: Limits, narrow: [(usize, usize); 3]) -> [Limits; 3] {
    narrow.map(|(max_values, buffers)| Limits {
        max_values,
        buffers,
        ..limits
    })
}

/// Asserts that rows are the same, and their norms nearly.
fn assert_rows(found: &[TensorStatus], expected: &[TensorStatus], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let norm = expected.norm;
        assert!((found.norm - norm).abs() <= 1e-6 * norm, "{what}");
        assert_eq!(TensorStatus { norm, ..*found }, *expected, "{what}");
    }
}

const LENGTHS: [usize; 9] = [5000, 17, 0, 40_000, 8192, 4097, 64, 1, 12_345];

#[test]
fn limits_change_nothing_but_the_launches() {
    let Some(device) = device() else { return };
    for (half, keep_dtype) in [(false, false), (false, true), (true, false), (true, true)] {
        let tensor = |(seed, length)| upload(values(seed, length), half, &device);
        let list = || Vec::from_iter(LENGTHS.into_iter().enumerate().map(tensor));
        let limits = Limits::of(&list()[0].client);
        let (products, rows) = run(0.5, list(), keep_dtype, &limits);
        for narrow in narrowed(limits, [(1 << 12, 3), (1 << 31, 5), (1 << 31, 8)]) {
            let held = list();
            let (again, others) = run(0.5, held.clone(), keep_dtype, &narrow);
            assert_eq!(again, products);
            assert_rows(&others, &rows, &format!("{narrow:?}"));
        }
    }
}

/// Every parameter finds its own row, in parts of it too, and what is held is not written.
#[test]
fn a_step_is_the_same_under_other_limits() {
    let Some(device) = device() else { return };
    // As those of an `UpdateRow`: all but the rate are the same.
    let row = |number: usize| {
        let lr = number as f32 / 8.0;
        [1.0, 0.5, lr, 0.0, 0.25, 0.75, 0.5, 0.5, 0.5, 2.0, 0.5, 0.1]
    };
    let rows = || {
        let rows: Vec<f32> = (0..LENGTHS.len()).flat_map(row).collect();
        CubeBackend::float_from_data(TensorData::new(rows, [LENGTHS.len(), ROW]), &device)
    };
    // Adam with the largest moments, Adam, and plain SGD.
    for (rule, half) in [(6, false), (4, true), (0, false)] {
        let rule = UpdateRule::of_number(rule);
        let own = |(number, length)| {
            let tensor = |seed, half| upload(values(number + 100 * seed, length), half, &device);
            let mut own = vec![tensor(0, half), tensor(1, half)];
            own.extend(half.then(|| tensor(1, false)));
            let state = |state| CubeBackend::float_abs(tensor(state, false));
            own.extend((0..rule.states()).map(state));
            own
        };
        let parameters = || Vec::from_iter(LENGTHS.into_iter().enumerate().map(own));
        let step = |parameters, limits: &Limits| {
            let updated = update(limits, parameters, rows(), rule).into_iter();
            updated.map(read).collect::<Vec<_>>()
        };
        let limits = Limits::of(&rows().client);
        let expected = step(parameters(), &limits);
        let all = |own: Vec<Vec<CubeTensor>>| Vec::from_iter(own.into_iter().flatten().map(read));
        for narrow in narrowed(limits, [(1 << 12, 5), (1 << 31, 9), (1 << 31, 19)]) {
            let held = parameters();
            assert_eq!(step(held.clone(), &narrow), expected);
            assert_eq!(all(held), all(parameters()));
            assert_eq!(step(parameters(), &narrow), expected);
        }
    }
}

/// What stands in the padding is neither measured nor missed.
#[test]
fn padded_rows_are_taken_as_they_lie() {
    let Some(device) = device() else { return };
    let shapes = [
        ([3, 7, 50], 64),
        ([1, 300, 257], 272),
        ([5, 4, 3], 4),
        ([2, 2, 9], 32),
    ];
    let halves = [false, true].into_iter();
    for (half, (shape, pitch)) in halves.flat_map(|half| shapes.map(|of| (half, of))) {
        let [planes, rows, columns] = shape;
        let dense = values(pitch, planes * rows * columns);
        let tensor = || {
            let mut padded = Vec::new();
            for row in dense.chunks_exact(columns) {
                padded.extend_from_slice(row);
                padded.resize(padded.len().next_multiple_of(pitch), f32::NAN);
            }
            let buffer = upload(padded, half, &device);
            let strides = Strides::from([rows * pitch, pitch, 1].as_slice());
            let meta = Metadata::new(Shape::from(shape), strides).into();
            CubeTensor { meta, ..buffer }
        };
        assert_eq!(Laid::padded(tensor()).run.padding, Some((pitch, columns)));
        let limits = Limits::of(&tensor().client);
        let whole = vec![upload(dense.clone(), half, &device)];
        let (expected, want) = run(0.5, whole, true, &limits);
        for (held, keep_dtype) in [(false, true), (true, true), (true, false)] {
            let what = format!("{shape:?} {pitch} {held} {keep_dtype}");
            let tensor = tensor();
            let other = held.then(|| tensor.clone());
            let (products, found) = run(0.5, vec![tensor], keep_dtype, &limits);
            assert_eq!(products, expected, "{what}");
            assert_rows(&found, &want, &what);
            drop(other);
        }
        // Not even by a factor that makes something of nothing.
        let (_, found) = run(f32::INFINITY, vec![tensor()], true, &limits);
        let (all, found) = (dense.len() as u64, found[0]);
        let counts = (found.non_finite, found.zeros, found.above);
        assert_eq!(counts, (all, 0, all), "{shape:?} {pitch}");
    }
}

#[test]
fn only_rows_are_padded() {
    let cases: [(&[usize], &[usize], _); 8] = [
        (&[3, 5], &[8, 1], Some((8, 5))),
        (&[2, 3, 5], &[24, 8, 1], Some((8, 5))),
        (&[3, 5], &[5, 1], None),
        (&[2, 3, 5], &[32, 8, 1], None),
        (&[3, 5], &[1, 8], None),
        (&[3, 5], &[0, 1], None),
        (&[3, 0], &[8, 1], None),
        (&[5], &[1], None),
    ];
    for (shape, strides, expected) in cases {
        let found = padding(&Shape::from(shape), &Strides::from(strides));
        assert_eq!(found, expected, "{shape:?}, {strides:?}");
    }
}
