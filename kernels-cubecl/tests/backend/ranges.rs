//! Magnitudes whose squares leave the range of their dtype.

use burn::tensor::DType;
use burn_amp_kernels::{TensorList, TensorStatus};

use crate::{
    create::{doubles, floats},
    device::{dtypes, keeps_subnormals},
    host,
    system::System,
};

fn inspect(system: &System, values: Vec<f32>) -> TensorStatus {
    let mut list = TensorList::new();
    let length = values.len();
    list.push(floats(values, [length]));
    system.inspect(list).read()[0]
}

pub fn squares_overflow(system: &System) {
    let row = inspect(system, vec![1e30; 1001]);
    assert_eq!((row.non_finite, row.max_abs), (0, f64::from(1e30f32)));
    system.assert_norm(row.norm, f64::from(1e30f32) * 1001f64.sqrt());
    // The norm just fits f32.
    let row = inspect(
        system,
        vec![f32::MAX / 4.0, -f32::MAX / 2.0, f32::MAX / 4.0],
    );
    system.assert_norm(row.norm, f64::from(f32::MAX) * 0.375f64.sqrt());
    let row = inspect(system, vec![f32::MAX]);
    system.assert_norm(row.norm, f64::from(f32::MAX));
}

pub fn squares_underflow(system: &System) {
    let row = inspect(system, vec![1e-30; 1001]);
    assert_eq!((row.zeros, row.max_abs), (0, f64::from(1e-30f32)));
    system.assert_norm(row.norm, f64::from(1e-30f32) * 1001f64.sqrt());
    let row = inspect(system, vec![f32::MIN_POSITIVE; 64]);
    system.assert_norm(row.norm, f64::from(f32::MIN_POSITIVE) * 8.0);
    if keeps_subnormals(DType::F32) {
        let row = inspect(system, vec![f32::from_bits(1); 64]);
        assert_eq!((row.zeros, row.max_abs), (0, f64::from(f32::from_bits(1))));
        system.assert_norm(row.norm, f64::from(f32::from_bits(1)) * 8.0);
        let row = inspect(system, vec![1e-40; 900]);
        system.assert_norm(row.norm, f64::from(1e-40f32) * 30.0);
    }
}

/// Small values beside a large one neither count nor disturb, also when it is not finite.
pub fn far_apart(system: &System) {
    let mut values = vec![1e-30f32; 500];
    values.extend([3e30, -4e30, 0.0]);
    let row = inspect(system, values.clone());
    system.assert_norm(
        row.norm,
        host::norm(&[f64::from(3e30f32), f64::from(4e30f32)]),
    );
    assert_eq!(row.zeros, 1);

    values.truncate(500);
    values.extend([f32::INFINITY, f32::NAN]);
    let row = inspect(system, values);
    assert_eq!((row.non_finite, row.max_abs), (2, f64::from(1e-30f32)));
    system.assert_norm(row.norm, f64::from(1e-30f32) * 500f64.sqrt());

    let row = inspect(system, vec![f32::INFINITY, f32::NAN, f32::NEG_INFINITY]);
    assert_eq!((row.non_finite, row.zeros), (3, 0));
    assert_eq!((row.max_abs, row.norm), (0.0, 0.0));
}

/// f64 gradients have a wider range than the squares of any f64.
pub fn doubles_out_of_range(system: &System) {
    if !dtypes().contains(&DType::F64) {
        return;
    }
    let lists = [
        vec![1e99; 33],
        vec![1e101; 33],
        vec![1e200; 33],
        vec![-1e300; 33],
        vec![f64::MAX / 2.0],
        vec![1e-99; 33],
        vec![1e-101; 33],
        vec![1e-200; 33],
        vec![-1e-300; 33],
        vec![f64::MIN_POSITIVE; 33],
        vec![f64::from_bits(1); 64],
        vec![1e-300, 1e300],
        vec![1e99, 1.1e100],
        vec![1.1e-100, 0.9e-100],
        vec![1e-101, 1e-99, 1.0, 1e99, 1e101],
    ];
    for values in lists {
        let expected = host::norm(&values);
        let show = format!("{:e} and so on, {} values", values[0], values.len());
        let mut list = TensorList::new();
        list.push(doubles(values));
        let norm = system.inspect(list).read()[0].norm;
        let error = (norm - expected).abs() / expected;
        assert!(
            error <= system.tolerance,
            "{show}: norm {norm:e} for {expected:e}"
        );
    }
}

/// Finite values whose products are not: bad after scaling and not before.
pub fn overflow_by_scaling(system: &System) {
    let mut list = TensorList::new();
    list.push(floats(vec![1e38, -2e38, 1.0, f32::NAN], [4]));
    let (products, status) = system.unscale(list, 8.0);
    let row = status.read()[0];
    assert_eq!((row.non_finite_before, row.non_finite), (1, 3));
    assert_eq!(row.max_abs, 8.0);
    system.assert_norm(row.norm, 8.0);
    let products = products
        .get::<1>(0)
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(products[..3], [f32::INFINITY, f32::NEG_INFINITY, 8.0]);
    assert!(products[3].is_nan());
}

/// Values whose products are too small for any f32: zeros after scaling, with their sign.
pub fn underflow_by_scaling(system: &System) {
    let mut list = TensorList::new();
    list.push(floats(vec![1e-30, -1e-30, 1.0, 0.0], [4]));
    let (products, status) = system.unscale(list, 1e-20);
    let row = status.read()[0];
    assert_eq!((row.zeros, row.non_finite), (3, 0));
    assert_eq!(row.max_abs, f64::from(1e-20f32));
    let products = products
        .get::<1>(0)
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(products, [0.0, 0.0, 1e-20, 0.0]);
}
