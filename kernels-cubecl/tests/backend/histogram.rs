//! Counts by binary exponent.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::{ExponentHistogram, TensorList};

use crate::{
    create::{floats, from_bits, random},
    device::{device, dtypes, keeps_subnormals},
    host,
    system::System,
};

/// Counts on the host, and how many of them are subnormal values that a device may take for zero.
#[derive(Default)]
struct Expected {
    zeros: u64,
    non_finite: u64,
    /// By exponent, those outside the range one beyond it.
    exponents: std::collections::BTreeMap<i32, u64>,
}

impl Expected {
    fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let data = tensor.to_data();
        for value in host::widen(&data) {
            if !value.is_finite() {
                self.non_finite += 1;
            } else if value == 0.0 {
                self.zeros += 1;
            } else {
                let exponent = exponent(value).clamp(
                    ExponentHistogram::MIN_EXPONENT - 1,
                    ExponentHistogram::MAX_EXPONENT + 1,
                );
                *self.exponents.entry(exponent).or_default() += 1;
            }
        }
    }

    fn assert(&self, found: &ExponentHistogram) {
        let count = |exponent| self.exponents.get(&exponent).copied().unwrap_or(0);
        assert_eq!(found.non_finite(), self.non_finite);
        assert_eq!(found.zeros(), self.zeros);
        assert_eq!(found.below(), count(ExponentHistogram::MIN_EXPONENT - 1));
        assert_eq!(found.above(), count(ExponentHistogram::MAX_EXPONENT + 1));
        for (exponent, found) in found.iter() {
            assert_eq!(found, count(exponent), "exponent {exponent}");
        }
    }
}

/// By comparison with powers of two, not by the bits.
fn exponent(value: f64) -> i32 {
    let magnitude = value.abs();
    let mut exponent = magnitude.log2().floor() as i32;
    while 2f64.powi(exponent) > magnitude {
        exponent -= 1;
    }
    while 2f64.powi(exponent + 1) <= magnitude {
        exponent += 1;
    }
    exponent
}

fn check<const D: usize>(system: &System, tensors: Vec<Tensor<D>>) {
    let (mut list, mut expected) = (TensorList::new(), Expected::default());
    for tensor in tensors {
        expected.add(&tensor);
        list.push(tensor);
    }
    expected.assert(&system.histogram(list));
}

pub fn no_values(system: &System) {
    assert_eq!(
        system.histogram(TensorList::new()),
        ExponentHistogram::default()
    );
    let empty = || Tensor::<2>::zeros([0, 3], (&device(), DType::F32));
    check(system, vec![empty(), empty()]);
}

/// Both sides of every power of two.
pub fn edges(system: &System) {
    let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    values.extend([f32::MAX, f32::MIN_POSITIVE]);
    for exponent in -45..=20 {
        let power = 2f32.powi(exponent);
        values.extend([power, -power, power.next_down(), power.next_up()]);
    }
    let length = values.len();
    check(system, vec![floats(values, [length])]);
}

pub fn every_dtype(system: &System) {
    for (seed, dtype) in (500..).zip(dtypes()) {
        check(system, vec![random::<1>(dtype, seed, [5001])]);
    }
}

/// All bit patterns of f16.
pub fn every_half(system: &System) {
    if !dtypes().contains(&DType::F16) {
        return;
    }
    let flushed =
        |bits: &u64| !keeps_subnormals(DType::F16) && bits & 0x7C00 == 0 && bits & 0x3FF != 0;
    let bits: Vec<u64> = (0..1 << 16).filter(|bits| !flushed(bits)).collect();
    let length = bits.len();
    check(system, vec![from_bits(DType::F16, &bits, [length])]);
}

/// More tensors than one launch takes, of several dtypes and lengths.
pub fn many_tensors(system: &System) {
    let dtypes = dtypes();
    let dtype = |index: usize| dtypes[index % dtypes.len()];
    let tensor = |index| random::<2>(dtype(index), index as u64, [index % 7, 1 + index % 5]);
    check(system, (0..130).map(tensor).collect());
}

pub fn other_layouts(system: &System) {
    let tensor: Tensor<2> = random(DType::F32, 510, [37, 53]);
    check(system, vec![tensor.clone().transpose()]);
    check(system, vec![tensor.clone().slice([3..30, 7..8])]);
    check(system, vec![tensor.narrow(1, 5, 1).expand([37, 9])]);
}

/// More than one cube, chunk or thread takes.
pub fn large(system: &System) {
    check(system, vec![random::<1>(DType::F32, 520, [(1 << 20) + 3])]);
}

pub fn nothing_is_written(system: &System) {
    let tensor: Tensor<1> = random(DType::F32, 530, [1000]);
    let before = tensor.to_data();
    let mut list = TensorList::new();
    list.push(tensor.clone());
    system.histogram(list);
    assert_eq!(tensor.to_data().as_bytes(), before.as_bytes());
}
