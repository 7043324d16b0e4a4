use burn::tensor::Tensor;

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
}

impl Status {
    pub(crate) fn new(rows: Tensor<1>, elements: Vec<u64>) -> Self {
        let rows = Some(rows);
        Self { rows, elements }
    }

    /// The same, in memory of its own: for what is written again before it is read. Does not wait for the device.
    #[must_use]
    pub fn copied(&self) -> Self {
        let copied = |rows: Tensor<1>| {
            let own = Tensor::empty(rows.shape(), (&rows.device(), rows.dtype()));
            own.slice_assign(.., rows)
        };
        let rows = self.rows().map(copied);
        Self {
            rows,
            ..self.clone()
        }
    }

    /// The rows, of a list that was not empty.
    pub(crate) fn rows(&self) -> Option<Tensor<1>> {
        self.rows.clone()
    }
}
