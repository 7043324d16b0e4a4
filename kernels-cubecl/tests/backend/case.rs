//! A list of tensors that is inspected and unscaled in every way and compared with the reference.

use super::*;

/// A list, and other handles of its tensors' memory, which must keep their values.
#[derive(Default)]
pub struct Case {
    pub list: TensorList,
    pub held: TensorList,
    edge: Option<f32>,
}

impl Case {
    /// Counts from a magnitude on.
    pub fn count_from(mut self, edge: f32) -> Self {
        self.list.count_from(edge);
        self.edge = Some(edge);
        self
    }

    pub fn with<const D: usize>(mut self, tensor: Tensor<D>) -> Self {
        self.list.push(tensor);
        self
    }

    /// Inspects the list, counts its exponents, unscales it while other handles are alive, and when none is.
    pub fn check(mut self, system: &System, inverse: f32) {
        let (before, held) = (data(&self.list), data(&self.held));
        let list = || self.list.clone();
        let found = (list(), system.inspect(list()));
        self.check_products(system, &before, found, 1.0, "inspected");
        // Burn 0.22.1 cannot compare every view without values, where there is no kernel.
        let is_composed = system.is_composed || !has_kernels();
        if !is_composed || before.iter().all(|data| data.num_elements() > 0) {
            histogram::assert_counts(&system.histogram(list()), &before);
        }
        let kept = system.unscale_in_dtype(list(), inverse);
        self.check_products(system, &before, kept, inverse, "in its dtype");
        let shared = system.unscale(list(), inverse);
        let (products, rows) = self.check_products(system, &before, shared, inverse, "wide");
        assert!(data(&self.list) == before, "the list was written");

        let (owned, again) = system.unscale(std::mem::take(&mut self.list), inverse);
        // Which tells all bits apart.
        assert_eq!(format!("{:?}", again.read()), format!("{rows:?}"));
        assert_eq!(owned.len(), products.len());
        for (again, product) in data(&owned).iter().zip(&products) {
            assert_eq!(again.shape(), product.shape());
            assert_same(&widen(again), &widen(product), "what nobody else holds");
        }
        assert!(data(&self.held) == held, "what is held was written");
    }

    fn check_products(
        &self,
        system: &System,
        before: &[TensorData],
        (products, status): (TensorList, Status),
        inverse: f32,
        how: &str,
    ) -> (Vec<TensorData>, Vec<TensorStatus>) {
        let (rows, products) = (status.read(), data(&products));
        assert_eq!([rows.len(), products.len()], [before.len(); 2]);
        for (index, (before, after)) in before.iter().zip(&products).enumerate() {
            let dtype = before.dtype();
            let what = format!("unscale by {inverse:e}, {how}, {dtype:?} tensor {index}");
            let is_widened = how == "wide" && dtype != DType::F64;
            let target = if is_widened { DType::F32 } else { dtype };
            let kind = (after.dtype(), after.shape());
            assert_eq!(kind, (target, before.shape()), "{what}");
            let [values, products] = [before, after].map(widen);
            let product = |value: &f64| rounded(target, product(dtype, *value, inverse));
            let expected: Vec<f64> = values.iter().map(product).collect();
            for ((value, want), got) in values.iter().zip(&expected).zip(products) {
                let flushed = may_flush(dtype, target, *value, *want)
                    && (got == 0.0 || !got.is_finite() && !want.is_finite());
                let fits = same(got, *want) || flushed;
                assert!(fits, "{what}: {value:e} became {got:e} and not {want:e}");
            }
            let edge = self.edge.unwrap_or(f32::INFINITY);
            let expected = measure([dtype, target], &values, &expected, edge);
            assert_status(&rows[index], &expected, system.tolerance(), &what);
        }
        (products, rows)
    }
}

/// Of tensors of any ranks.
fn data(list: &TensorList) -> Vec<TensorData> {
    let tensors = list.clone().into_iter().map(Tensor::<1>::from_dispatch);
    tensors.map(read).collect()
}
