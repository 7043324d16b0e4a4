//! A list of tensors that is inspected and unscaled in every way and compared with the reference.

use burn::tensor::{Tensor, TensorData};
use burn_amp_kernels::{Status, TensorList, TensorStatus};

use crate::host::{self, Expected};
use crate::{histogram, number, system::System};

/// A list, and other handles of its tensors' memory.
pub struct Case {
    list: TensorList,
    edge: f32,
    held: Vec<Tensor<2>>,
}

impl Case {
    pub fn new() -> Self {
        Self {
            list: TensorList::new(),
            edge: f32::INFINITY,
            held: Vec::new(),
        }
    }

    /// Counts from a magnitude on.
    pub fn count_from(mut self, edge: f32) -> Self {
        self.list.count_from(edge);
        self.edge = edge;
        self
    }

    pub fn add<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.list.push(tensor);
    }

    pub fn with<const D: usize>(mut self, tensor: Tensor<D>) -> Self {
        self.add(tensor);
        self
    }

    /// Another handle of the memory of a tensor, which must keep its values.
    pub fn hold(&mut self, tensor: Tensor<2>) {
        self.held.push(tensor);
    }

    /// Inspects the list, counts its exponents, unscales it while other handles are alive, and when none is.
    pub fn check(mut self, system: &System, inverse: f32) {
        let before = data(&self.list);
        let held = |case: &Self| Vec::from_iter(case.held.iter().cloned().map(number::read));
        let held_before = held(&self);

        let found = (self.list.clone(), system.inspect(self.list.clone()));
        self.check_products(system, &before, found, 1.0, "inspected");
        // Burn 0.22.1 cannot compare every view without values, where there is no kernel.
        if system.uses_kernels() || before.iter().all(|data| data.num_elements() > 0) {
            histogram::assert_counts(&system.histogram(self.list.clone()), &before);
        }
        assert_unchanged(&data(&self.list), &before);

        let kept = system.unscale_in_dtype(self.list.clone(), inverse);
        self.check_products(system, &before, kept, inverse, "in its dtype");
        let shared = system.unscale(self.list.clone(), inverse);
        let (products, status) = self.check_products(system, &before, shared, inverse, "wide");
        assert_unchanged(&data(&self.list), &before);

        let list = std::mem::take(&mut self.list);
        let (owned, again) = system.unscale(list, inverse);
        let again = again.read();
        let lengths = [again.len(), owned.len()];
        assert_eq!(lengths, [status.len(), products.len()]);
        for (again, status) in again.iter().zip(&status) {
            assert_same_bits(again, status);
        }
        for (again, product) in data(&owned).iter().zip(&products) {
            assert_eq!(again.shape(), product.shape());
            let (again, product) = (number::widen(again), number::widen(product));
            let mut both = again.iter().zip(&product);
            assert!(both.all(|(a, b)| number::same(*a, *b)), "{again:?}");
        }
        assert_unchanged(&held(&self), &held_before);
    }

    fn check_products(
        &self,
        system: &System,
        before: &[TensorData],
        (products, status): (TensorList, Status),
        inverse: f32,
        how: &str,
    ) -> (Vec<TensorData>, Vec<TensorStatus>) {
        let (status, products) = (status.read(), data(&products));
        assert_eq!([status.len(), products.len()], [before.len(); 2]);
        for index in 0..before.len() {
            let what = format!("unscale by {inverse:e}, {how}, tensor {index}");
            let (product, dtype) = (&products[index], before[index].dtype());
            let target = match how {
                "wide" => host::product_dtype(dtype),
                _ => dtype,
            };
            assert_eq!(product.dtype(), target, "{what}");
            let expected = self.assert_products([&before[index], product], inverse, &what);
            assert_status(system, &status[index], &expected, &what);
        }
        (products, status)
    }

    fn assert_products(&self, both: [&TensorData; 2], inverse: f32, what: &str) -> Expected {
        let ([before, after], dtypes) = (both, both.map(TensorData::dtype));
        let [dtype, target] = dtypes;
        assert_eq!(after.shape(), before.shape(), "{what}");
        let [values, products] = both.map(number::widen);
        let product = |value: &f64| number::rounded(target, host::product(dtype, *value, inverse));
        let expected: Vec<f64> = values.iter().map(product).collect();
        for (position, (value, want)) in values.iter().zip(&expected).enumerate() {
            let got = products[position];
            let flushed = host::may_flush(dtype, target, *value, *want)
                && (got == 0.0 || !got.is_finite() && !want.is_finite());
            let fits = number::same(got, *want) || flushed;
            assert!(
                fits,
                "{what}, {dtype:?} value {position}: {value:e} became {got:e} and not {want:e}"
            );
        }
        host::measure(dtypes, &values, &expected, self.edge)
    }
}

/// Of tensors of any ranks.
fn data(list: &TensorList) -> Vec<TensorData> {
    let tensors = list.clone().into_iter().map(Tensor::<1>::from_dispatch);
    tensors.map(number::read).collect()
}

fn assert_unchanged(now: &[TensorData], before: &[TensorData]) {
    for (index, (now, before)) in now.iter().zip(before).enumerate() {
        assert_eq!((now.dtype(), now.shape()), (before.dtype(), before.shape()));
        let same = now.as_bytes() == before.as_bytes();
        assert!(same, "tensor {index} was written");
    }
}

fn assert_status(system: &System, status: &TensorStatus, expected: &Expected, what: &str) {
    let show = format!("{what}: {status:?} for {expected:?}");
    let bad = [status.non_finite_before, status.non_finite];
    let counts = [status.elements, bad[0], bad[1], status.above];
    assert_eq!(counts, expected.counts, "{show}");
    assert!(expected.zeros.contains(&status.zeros), "{show}");
    assert!(expected.max_abs.contains(&status.max_abs), "{show}");
    let least = expected.norm.start() * (1.0 - system.tolerance);
    let most = expected.norm.end() * (1.0 + system.tolerance);
    assert!((least..=most).contains(&status.norm), "{show}");
}

/// Asserts that two rows are the same to the last bit.
pub fn assert_same_bits(a: &TensorStatus, b: &TensorStatus) {
    let bits = |row: &TensorStatus| (row.max_abs.to_bits(), row.norm.to_bits());
    assert_eq!((a, bits(a)), (b, bits(b)));
}
