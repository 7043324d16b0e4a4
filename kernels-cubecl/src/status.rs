use burn::{
    backend::DispatchTensor,
    tensor::{Device, FloatDType, Tensor, TensorData},
};

use crate::reading::Reading;

/// Floats of one tensor's row.
pub(crate) const FIELDS: usize = 11;

/// Counts are two floats, so that each is exact in f32 up to 2^44: in units of this, and the rest.
pub(crate) const COUNT_BASE: u32 = 1 << 20;

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

/// What was found in one tensor. Host values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorStatus {
    /// The number of values.
    pub elements: u64,
    /// Values of at least the magnitude that [`TensorList::count_from`](crate::TensorList::count_from) names, after scaling,
    /// infinities and NaN among them.
    pub above: u64,
    /// Values that were infinite or NaN before scaling.
    pub non_finite_before: u64,
    /// Values that are infinite or NaN after scaling.
    pub non_finite: u64,
    /// Values that are zero after scaling.
    pub zeros: u64,
    /// The largest magnitude of the finite values after scaling; 0 if there are none.
    pub max_abs: f64,
    /// The L2 norm of the finite values after scaling.
    pub norm: f64,
}

impl Status {
    pub(crate) fn new(rows: DispatchTensor, elements: Vec<u64>, home: Option<Device>) -> Self {
        Self {
            rows: Some(Tensor::from_dispatch(rows)),
            elements,
            home,
        }
    }

    /// Reads the status, a row for each tensor, in the order of the list.
    ///
    /// Waits for the device, for one small transfer: 44 bytes a tensor from kernels.
    ///
    /// # Panics
    ///
    /// In Burn, if the device fails: it is lost, or work that was queued before cannot be done.
    pub fn read(self) -> Vec<TensorStatus> {
        Reading::now(self, Vec::new()).wait(1.0).0
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

/// Launches what is to be read, in one transfer where all rows are of one dtype on one device, and gives what looks at it, on any
/// thread: CubeCL's devices copy only then.
pub(crate) fn rows_later(
    tensors: Vec<Tensor<1>>,
) -> impl FnOnce() -> Vec<Vec<TensorStatus>> + Send {
    let lengths: Vec<usize> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
    let kind = |tensor: &Tensor<1>| (tensor.device(), tensor.dtype());
    let alike = tensors.iter().all(|other| kind(other) == kind(&tensors[0]));
    let tensors = match alike && tensors.len() > 1 {
        true => vec![Tensor::cat(tensors, 0)],
        false => tensors,
    };
    let data: Vec<TensorData> = tensors.into_iter().map(Tensor::into_data).collect();
    move || {
        let mut rows = data.iter().flat_map(|data| decode(data.iter()));
        let mut next = |length: usize| rows.by_ref().take(length / FIELDS).collect();
        lengths.into_iter().map(&mut next).collect()
    }
}

/// What rows say, but for the numbers of elements.
pub(crate) fn decode(fields: impl Iterator<Item = f64>) -> Vec<TensorStatus> {
    let fields: Vec<f64> = fields.collect();
    let row = |fields: &[f64]| {
        let count = |at: usize| decode_count(&fields[at..]);
        // What was not finite is not made so by any factor: a compiler that trusts in finite arithmetic can only
        // lose what the multiplication itself has made infinite.
        let non_finite = count(4).max(count(2));
        TensorStatus {
            elements: 0,
            above: count(0).max(non_finite),
            non_finite_before: count(2),
            non_finite,
            zeros: count(6),
            max_abs: fields[8],
            norm: fields[9] * fields[10],
        }
    };
    fields.chunks_exact(FIELDS).map(row).collect()
}

/// The norms of rows.
#[cfg(feature = "flex")]
pub(crate) fn norms(rows: &[f64]) -> Vec<f64> {
    let rows = rows.chunks_exact(FIELDS);
    rows.map(|row| row[9] * row[10]).collect()
}

pub(crate) fn decode_count(fields: &[f64]) -> u64 {
    fields[0] as u64 * u64::from(COUNT_BASE) + fields[1] as u64
}
