use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use burn_std::is_dense;
use cubecl::{client::Client, prelude::*};

/// Tensors that one launch takes at most, where the device allows as many: each has its own code in the kernel.
const MAX_TENSORS: usize = 28;
/// Bindings that are not tensors: inverse, partials, output, and what CubeCL adds for sizes and scalars.
const OTHER_BINDINGS: usize = 4;

/// How many tensors one launch takes on a device.
pub(super) fn tensors_per_launch(client: &Client) -> usize {
    tensors_for(client.properties().hardware.max_bindings)
}

fn tensors_for(bindings: u32) -> usize {
    usize::try_from(bindings)
        .unwrap_or(usize::MAX)
        .saturating_sub(OTHER_BINDINGS)
        .clamp(1, MAX_TENSORS)
}

/// Neighbours of one key, up to `limit` of them at a time.
pub(super) fn groups<T, K: PartialEq>(
    items: Vec<T>,
    limit: usize,
    key: impl Fn(&T) -> K,
) -> Vec<Vec<T>> {
    let fits = |group: &[T], item: &T| group.len() < limit && key(&group[0]) == key(item);
    split(items, fits)
}

/// Neighbours that fit one another; what fits nowhere is alone.
pub(super) fn split<T>(items: Vec<T>, fits: impl Fn(&[T], &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.last_mut() {
            Some(group) if fits(group, &item) => group.push(item),
            _ => groups.push(vec![item]),
        }
    }
    groups
}

/// Which cubes work at which tensor: those from its start to the next one's. And how many there are.
pub(super) fn starts(cubes: impl Iterator<Item = usize>) -> (SequenceArg<u32>, u32) {
    let mut starts = SequenceArg::new();
    let mut total = 0;
    for cubes in cubes {
        starts.push(total);
        total += cubes as u32;
    }
    starts.push(total);
    (starts, total)
}

/// A tensor that fills its buffer, which elementwise kernels take as it lies, or else a contiguous copy.
pub(super) fn dense(tensor: CubeTensor) -> CubeTensor {
    match is_dense(tensor.meta.shape(), tensor.meta.strides()) {
        true => tensor,
        false => into_contiguous(tensor),
    }
}

/// A dense tensor as the kernels read it, in vectors.
pub(super) fn buffer(tensor: &CubeTensor, vector: usize) -> BufferArg {
    let vectors = tensor.meta.num_elements() / vector;
    // SAFETY: the tensor is dense, and this is its length in vectors.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), vectors) }
}

/// The widest vector, up to 4 values, that divides a tensor: what every runtime loads at once.
pub(super) fn vector_width(elements: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|w| elements.is_multiple_of(*w))
        .unwrap_or(1)
}

/// Whether nobody else holds the memory, nor will read it: what Burn's `to_data` returns is read when it is looked at.
///
/// Launches that are still queued hold memory in the same way. They have let go when the queue is done, which is waited for then;
/// not for the device. CubeCL's runtime for CPUs lets go when the work is done: there a gradient that was just made is taken for one
/// that was read.
pub(super) fn may_overwrite(tensor: &CubeTensor) -> bool {
    let is_bound = || tensor.handle.memory.is_bound();
    if !tensor.can_mut() {
        return false;
    }
    if is_bound() {
        // What it finds is told again where the results are read.
        let _ = tensor.client.check([]);
    }
    !is_bound()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_decide_how_many_tensors_a_launch_takes() {
        // WebGPU's minimum, less the one that CubeCL keeps for itself.
        assert_eq!(tensors_for(7), 3);
        assert_eq!(tensors_for(32), 28);
        assert_eq!(tensors_for(1024), 28);
        assert_eq!(tensors_for(u32::MAX), 28);
        // Less than a kernel needs: it is launched, and the device says so.
        assert_eq!(tensors_for(0), 1);
    }

    #[test]
    fn groups_are_neighbours_of_one_key() {
        let items = vec![1, 1, 1, 1, 2, 1];
        let groups = groups(items, 3, |item| *item);
        assert_eq!(groups, [vec![1, 1, 1], vec![1], vec![2], vec![1]]);
    }

    #[test]
    fn vectors_divide_a_tensor() {
        let widths: Vec<usize> = (1..=8).map(vector_width).collect();
        assert_eq!(widths, [1, 2, 1, 4, 1, 2, 1, 4]);
    }
}
