//! How tensors lie in memory.

use burn::tensor::DType;
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use burn_std::is_dense;
use cubecl::prelude::*;

use super::plan::MAX_VALUES;

/// Bits that a unit loads at once, on every GPU.
const LOAD: u32 = 128;

/// A tensor as the kernels read it: a run of values, which may have padding at the ends of its rows.
pub(super) struct Laid {
    pub(super) tensor: CubeTensor,
    /// Values of the run, with the padding between them.
    pub(super) span: usize,
    /// Values of a vector.
    pub(super) vector: usize,
    /// Values from one row to the next, and values of a row, where rows are padded.
    pub(super) padding: Option<(usize, usize)>,
}

impl Laid {
    /// The tensor as it lies, if its values fill a buffer in any order of dimensions, or else a contiguous copy.
    pub(super) fn dense(tensor: CubeTensor) -> Self {
        let tensor = match is_dense(tensor.meta.shape(), tensor.meta.strides()) {
            true => tensor,
            false => into_contiguous(tensor),
        };
        let span = tensor.meta.num_elements();
        Self {
            vector: vector(&tensor, span),
            span,
            tensor,
            padding: None,
        }
    }

    /// The same, but rows may be padded, as CUDA's and HIP's are where that aligns them.
    pub(super) fn padded(tensor: CubeTensor) -> Self {
        let Some((pitch, columns)) = padding(tensor.meta.shape(), tensor.meta.strides()) else {
            return Self::dense(tensor);
        };
        let vector = vector(&tensor, pitch);
        let rows = tensor.meta.num_elements() / columns;
        let span = ((rows - 1) * pitch + columns).next_multiple_of(vector);
        // Of a view, the last row may have no padding.
        let there = tensor.handle.size_in_used() as usize / tensor.elem_size();
        match span <= there && span <= MAX_VALUES {
            true => Self {
                tensor,
                span,
                vector,
                padding: Some((pitch, columns)),
            },
            false => Self::dense(tensor),
        }
    }

    /// A new tensor whose values lie in the same way.
    pub(super) fn product(&self, dtype: DType) -> Self {
        let tensor = &self.tensor;
        let length = match self.padding {
            Some((pitch, _)) => self.span.next_multiple_of(pitch),
            None => self.span,
        };
        let handle = match length {
            // The kernels do not write it.
            0 => tensor.handle.clone(),
            _ => tensor.client.empty(length * dtype.size()),
        };
        let (client, device) = (tensor.client.clone(), tensor.device.clone());
        Self {
            tensor: CubeTensor::new(client, handle, *tensor.meta.clone(), device, dtype),
            ..*self
        }
    }

    /// A part of it, as the kernels read it, in vectors.
    pub(super) fn part(&self, first: usize, values: usize) -> BufferArg {
        let size = self.tensor.elem_size();
        let used = self.tensor.handle.size_in_used();
        let handle = self.tensor.handle.clone();
        let handle = match values == self.span {
            true => handle,
            false => handle
                .offset_start((first * size) as u64)
                .offset_end(used - ((first + values) * size) as u64),
        };
        // SAFETY: the run is the tensor's own memory, and this is its length in vectors.
        unsafe { BufferArg::from_raw_parts(handle, values / self.vector) }
    }

    pub(super) fn whole(&self) -> BufferArg {
        self.part(0, self.span)
    }
}

/// The stride of rows and their values, if there is padding between rows and nowhere else.
fn padding(shape: &[usize], strides: &[usize]) -> Option<(usize, usize)> {
    let rank = shape.len();
    if rank < 2 || strides.len() != rank || strides[rank - 1] != 1 {
        return None;
    }
    let (pitch, columns) = (strides[rank - 2], shape[rank - 1]);
    let mut expected = pitch;
    for (dim, stride) in shape[..rank - 1].iter().zip(&strides[..rank - 1]).rev() {
        if *stride != expected {
            return None;
        }
        expected *= dim;
    }
    (pitch > columns && expected > 0 && columns > 0).then_some((pitch, columns))
}

/// The widest vector that the device loads at once and that divides this length and where the tensor begins.
fn vector(tensor: &CubeTensor, length: usize) -> usize {
    let size = tensor.elem_size();
    let hardware = &tensor.client.properties().hardware;
    let values = hardware.load_width.min(LOAD) as usize / 8 / size;
    let most = values.min(hardware.max_vector_size).max(1);
    let start = tensor.handle.offset_start.unwrap_or(0) as usize / size;
    // Both are multiples of what divides either of their bits.
    1 << (length | start | 1 << most.ilog2()).trailing_zeros()
}

/// Whether nobody else holds the memory, nor will read it: what Burn's `to_data` returns is read when it is looked at.
///
/// Launches that are still queued hold memory in the same way. They have let go when the queue is done, which is waited for then;
/// not for the device. CubeCL's runtime for CPUs lets go when the work is done: there a gradient that was just made is taken for one
/// that was read.
///
/// What is recorded holds memory for good, and runs in its place.
pub(super) fn may_overwrite(tensor: &CubeTensor) -> bool {
    let is_bound = || tensor.handle.memory.is_bound();
    if !tensor.can_mut() {
        return false;
    }
    if tensor.client.is_capturing() {
        return true;
    }
    if is_bound() {
        // What it finds is told again where the results are read.
        let _ = tensor.client.check([]);
    }
    !is_bound()
}

#[cfg(test)]
#[path = "../../../tests/units/padding.rs"]
mod tests;
