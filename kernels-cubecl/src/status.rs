use burn::{
    backend::DispatchTensor,
    tensor::{Device, FloatDType, Tensor},
};

use crate::rows::FIELDS;

/// What a pass has found, still on the device.
///
/// # Rows
///
/// A backend writes 11 floats for each tensor, in the order of the list: in f32, or in f64 on Flex and where a tensor is f64
/// and the backend has no kernels.
///
/// | fields | |
/// |--:|---|
/// | 0, 1 | values at or above the edge after scaling, infinities and NaN among them |
/// | 2, 3 | infinities and NaN before scaling |
/// | 4, 5 | infinities and NaN after scaling |
/// | 6, 7 | zeros after scaling |
/// | 8 | largest finite magnitude after scaling |
/// | 9 | a unit near it, above zero, so that the norm in this unit is in the range of f32 |
/// | 10 | L2 norm of the finite values after scaling, in this unit |
///
/// Counts have two fields: multiples of 2^20, and what is left.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// None if the list was empty.
    rows: Option<Tensor<1>>,
    /// Of each tensor.
    pub(crate) elements: Vec<u64>,
    /// The device of the list, where the work was done on another.
    home: Option<Device>,
}

impl Status {
    pub(crate) fn new(rows: DispatchTensor, elements: Vec<u64>, home: Option<Device>) -> Self {
        Self {
            rows: Some(Tensor::from_dispatch(rows)),
            elements,
            home,
        }
    }

    /// Whether a value of any tensor is infinite or NaN after scaling: 1 or 0, in f32, of shape `[1]`, on the device of the
    /// list. None for an empty list. As `found_inf` of PyTorch's scaler.
    ///
    /// Does not wait for the device: for steps that are built without a wait. [`read`](Self::read) is not needed for it.
    pub fn found_inf(&self) -> Option<Tensor<1>> {
        let bad = (self.field(4)? + self.field(5)?).max();
        Some(self.at_home(bad.greater_elem(0.0).int().cast(FloatDType::F32)))
    }

    /// The L2 norm of the finite values of all tensors after scaling, as one vector: in f32, of shape `[1]`, on the device of
    /// the list. None for an empty list. Infinite where it is beyond f32.
    ///
    /// Does not wait for the device.
    pub fn norm(&self) -> Option<Tensor<1>> {
        // Relative to the largest unit, so that squares are in range.
        let units = self.field(9)?;
        let unit = units.clone().max();
        let norms = self.field(10)? * (units / unit.clone());
        Some(self.at_home((norms.square().sum().sqrt() * unit).cast(FloatDType::F32)))
    }

    /// The same, in memory of its own: for what is written again before it is read. Does not wait for the device.
    #[must_use]
    pub fn copied(&self) -> Self {
        let copied = |rows: Tensor<1>| {
            let own = Tensor::empty(rows.shape(), (&rows.device(), rows.dtype()));
            own.slice_assign(.., rows)
        };
        Self {
            rows: self.rows.clone().map(copied),
            ..self.clone()
        }
    }

    /// The rows, of a list that was not empty.
    pub(crate) fn rows(&self) -> Option<Tensor<1>> {
        self.rows.clone()
    }

    /// One field of all rows.
    fn field(&self, at: usize) -> Option<Tensor<1>> {
        let rows = self.rows()?;
        let count = self.elements.len();
        let column = rows.reshape([count, FIELDS]).slice([0..count, at..at + 1]);
        Some(column.reshape([count]))
    }

    fn at_home(&self, value: Tensor<1>) -> Tensor<1> {
        match &self.home {
            Some(home) => value.to_device(home),
            None => value,
        }
    }
}
