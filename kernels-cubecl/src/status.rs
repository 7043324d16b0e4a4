use burn::{backend::DispatchTensor, tensor::Tensor};

use crate::{device::Kind, remote::is_remote};

/// Floats of one tensor's row.
pub(crate) const FIELDS: usize = 11;
/// The one of them that is the largest magnitude.
pub(crate) const MAX_ABS: usize = 8;

/// Counts are two floats, so that each is exact in f32 up to 2^44: in units of this, and the rest.
pub(crate) const COUNT_BASE: u32 = 1 << 20;

/// The measures of one tensor. Host values.
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

/// Reads the rows of tensors with so many elements.
pub(crate) fn decode(elements: &[u64], fields: impl Iterator<Item = f64>) -> Vec<TensorStatus> {
    let fields: Vec<f64> = fields.collect();
    // A row less would give its tensor another's numbers, or none, and an overflow would pass unseen.
    let rows = elements.len() * FIELDS;
    assert_eq!(fields.len(), rows, "a row for each tensor");
    let row = |(elements, fields): (&u64, &[f64])| {
        let count = |at: usize| decode_count(&fields[at..]);
        // What was not finite is not made so by any factor: a compiler that trusts in finite arithmetic can only
        // lose what the multiplication itself has made infinite.
        let non_finite = count(4).max(count(2));
        TensorStatus {
            elements: *elements,
            above: count(0).max(non_finite),
            non_finite_before: count(2),
            non_finite,
            zeros: count(6),
            max_abs: fields[MAX_ABS],
            norm: row_norm(fields),
        }
    };
    let rows = elements.iter().zip(fields.chunks_exact(FIELDS));
    rows.map(row).collect()
}

/// The norm of a row.
pub(crate) fn row_norm(fields: &[f64]) -> f64 {
    fields[9] * fields[10]
}

pub(crate) fn decode_count(fields: &[f64]) -> u64 {
    fields[0] as u64 * u64::from(COUNT_BASE) + fields[1] as u64
}

/// Writes the row of a tensor, which [`decode`] reads.
#[cfg(feature = "flex")]
pub(crate) fn encode(found: &TensorStatus) -> [f64; FIELDS] {
    let unit = power_near(found.max_abs).max(f32::MIN_POSITIVE.into());
    let bad = [found.non_finite_before, found.non_finite];
    let counts = [found.above, bad[0], bad[1], found.zeros].map(encode_count);
    let mut row = [0.0; FIELDS];
    let (of_counts, rest) = row.split_at_mut(2 * counts.len());
    of_counts.copy_from_slice(counts.as_flattened());
    rest.copy_from_slice(&[found.max_abs, unit, found.norm / unit]);
    row
}

#[cfg(feature = "flex")]
pub(crate) fn encode_count(count: u64) -> [f64; 2] {
    let base = u64::from(COUNT_BASE);
    [(count / base) as f64, (count % base) as f64]
}

/// The largest power of two that is not above a value, so that no digit is lost in this unit; above zero.
#[cfg(feature = "flex")]
pub(crate) fn power_near(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & f64::INFINITY.to_bits()).max(f64::MIN_POSITIVE)
}

/// The measures of a pass, still on the device.
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
    /// The rows; none if the list was empty.
    pub(crate) rows: Option<Tensor<1>>,
    /// The number of values of each tensor.
    pub(crate) elements: Vec<u64>,
}

impl Status {
    pub(crate) fn new(rows: Option<DispatchTensor>, elements: Vec<u64>) -> Self {
        let rows = rows.map(Tensor::from_dispatch);
        Self { rows, elements }
    }

    /// Says if all values were finite after scaling, where that is known without waiting: on Flex.
    pub fn is_finite_now(&self) -> Option<bool> {
        let rows = self.rows.clone()?;
        if !is_known_now(&rows) {
            return None;
        }
        let rows = decode(&self.elements, rows.into_data().iter());
        Some(rows.iter().all(|row| row.non_finite == 0))
    }

    /// The same, in memory of its own: for what is written again before it is read. Does not wait for the device.
    #[must_use]
    pub fn copied(&self) -> Self {
        let mut own = self.clone();
        own.rows = own.rows.map(copied);
        own
    }
}

/// Returns true if nobody has to wait to look at a tensor: on Flex.
pub(crate) fn is_known_now<const D: usize>(tensor: &Tensor<D>) -> bool {
    Kind::of(tensor.device().as_dispatch()) == Kind::Flex
}

/// Returns true if a tensor that is kept on its way costs no launch: on Flex, and on remote devices. Elsewhere it would be one more, beside the operations
/// that Fusion makes one kernel of.
pub fn is_kept_for_nothing<const D: usize>(tensor: &Tensor<D>) -> bool {
    is_known_now(tensor) || is_remote(&tensor.device())
}

/// A copy in memory that this thread has made; on Flex, and on remote devices, the tensor itself. On CubeCL's devices other threads may read too early what
/// this one writes in the place of what another has made (`docs/upstream/in-place-across-threads.md`). Does not wait for the device.
pub fn in_own_memory<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match is_kept_for_nothing(&tensor) {
        true => tensor,
        false => copied(tensor),
    }
}

/// A copy that shares no memory with the tensor.
pub fn copied<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::empty(tensor.shape(), (&tensor.device(), tensor.dtype()))
        .slice_assign([(); D].map(|()| ..), tensor)
}
