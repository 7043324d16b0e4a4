//! A list of tensors that is inspected and unscaled in every way and compared with the reference.

use burn::tensor::{Tensor, TensorData};
use burn_amp_kernels::{TensorList, TensorStatus};

use crate::{
    host::{self, Expected},
    system::System,
};

/// A list, and the ranks with which its tensors can be read.
#[derive(Default)]
pub struct Case {
    list: TensorList,
    ranks: Vec<usize>,
}

impl Case {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.list.push(tensor);
        self.ranks.push(D);
    }

    pub fn with<const D: usize>(mut self, tensor: Tensor<D>) -> Self {
        self.add(tensor);
        self
    }

    fn data(&self, list: &TensorList) -> Vec<TensorData> {
        assert_eq!(list.len(), self.ranks.len());
        let ranks = self.ranks.iter().enumerate();
        ranks
            .map(|(index, rank)| read(list, index, *rank))
            .collect()
    }

    /// Inspects the list, unscales it while other handles are alive, and unscales it when none is.
    pub fn check(mut self, system: &System, inverse: f32) {
        let before = self.data(&self.list);

        let found = system.inspect(self.list.clone()).read();
        assert_eq!(found.len(), before.len());
        for (index, (status, before)) in found.iter().zip(&before).enumerate() {
            let values = host::widen(before);
            let expected = host::measure(before.dtype(), &values, &values);
            assert_status(
                system,
                status,
                &expected,
                &format!("inspect, tensor {index}"),
            );
        }
        assert_unchanged(&self.data(&self.list), &before);

        let (shared, status) = system.unscale(self.list.clone(), inverse);
        let status = status.read();
        assert_eq!(status.len(), before.len());
        let products = self.data(&shared);
        for index in 0..before.len() {
            let what = format!("unscale by {inverse:e}, tensor {index}");
            let expected = assert_products(&before[index], &products[index], inverse, &what);
            assert_status(system, &status[index], &expected, &what);
        }
        assert_unchanged(&self.data(&self.list), &before);

        let list = std::mem::take(&mut self.list);
        let (owned, again) = system.unscale(list, inverse);
        let again = again.read();
        assert_eq!(again.len(), status.len());
        for (again, status) in again.iter().zip(&status) {
            assert_same_bits(again, status);
        }
        for (again, product) in self.data(&owned).iter().zip(&products) {
            assert_eq!(again.shape(), product.shape());
            let (again, product) = (host::widen(again), host::widen(product));
            let same =
                |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(
                again.iter().zip(&product).all(same),
                "products differ when owned"
            );
        }
    }
}

fn read(list: &TensorList, index: usize, rank: usize) -> TensorData {
    macro_rules! rank {
        ($($rank:literal)*) => {
            match rank {
                $($rank => {
                    let tensor = list.get::<$rank>(index);
                    match tensor.shape().num_elements() {
                        // Burn 0.22.1's CPU runtime cannot read every tensor that is empty.
                        0 => TensorData::from_bytes_vec(Vec::new(), tensor.shape(), tensor.dtype()),
                        _ => tensor.to_data(),
                    }
                })*
                rank => unreachable!("rank {rank}"),
            }
        };
    }
    rank!(1 2 3 4 5 6)
}

fn assert_unchanged(now: &[TensorData], before: &[TensorData]) {
    for (index, (now, before)) in now.iter().zip(before).enumerate() {
        assert_eq!((now.dtype(), now.shape()), (before.dtype(), before.shape()));
        assert!(
            now.as_bytes() == before.as_bytes(),
            "tensor {index} was written"
        );
    }
}

fn assert_products(before: &TensorData, after: &TensorData, inverse: f32, what: &str) -> Expected {
    let dtype = before.dtype();
    assert_eq!(after.shape(), before.shape(), "{what}");
    assert_eq!(after.dtype(), host::product_dtype(dtype), "{what}");
    let (values, products) = (host::widen(before), host::widen(after));
    let expected: Vec<f64> = (values.iter())
        .map(|value| host::product(dtype, *value, inverse))
        .collect();
    for (position, (value, want)) in values.iter().zip(&expected).enumerate() {
        let got = products[position];
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        let flushed = host::may_flush(dtype, *value, *want)
            && (got == 0.0 || !got.is_finite() && !want.is_finite());
        assert!(
            same || flushed,
            "{what}, {dtype:?} value {position}: {value:e} became {got:e} and not {want:e}"
        );
    }
    host::measure(dtype, &values, &expected)
}

fn assert_status(system: &System, status: &TensorStatus, expected: &Expected, what: &str) {
    let show = || format!("{what}: {status:?} for {expected:?}");
    assert_eq!(status.elements, expected.elements, "{}", show());
    assert_eq!(
        status.non_finite_before,
        expected.non_finite_before,
        "{}",
        show()
    );
    assert_eq!(status.non_finite, expected.non_finite, "{}", show());
    assert_eq!(status.above, expected.non_finite, "{}", show());
    assert!(expected.zeros.contains(&status.zeros), "{}", show());
    assert!(expected.max_abs.contains(&status.max_abs), "{}", show());
    let least = expected.norm.start() * (1.0 - system.tolerance);
    let most = expected.norm.end() * (1.0 + system.tolerance);
    assert!((least..=most).contains(&status.norm), "{}", show());
}

/// Asserts that two rows are the same to the last bit.
pub fn assert_same_bits(a: &TensorStatus, b: &TensorStatus) {
    let bits = |row: &TensorStatus| (row.max_abs.to_bits(), row.norm.to_bits());
    assert_eq!((a, bits(a)), (b, bits(b)));
}
