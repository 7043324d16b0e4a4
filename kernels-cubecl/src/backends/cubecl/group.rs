use burn_cubecl::tensor::CubeTensor;
use cubecl::{client::Client, prelude::*};

/// Tensors that one launch takes at most, where the device allows as many: each has its own code in the kernel.
const MAX_TENSORS: usize = 28;
/// Bindings that are not tensors: inverse, partials, output, and what CubeCL adds for sizes and scalars.
const OTHER_BINDINGS: usize = 4;

/// How many tensors one launch takes on a device.
pub(super) fn tensors_per_launch(client: &Client) -> usize {
    let bindings = client.properties().hardware.max_bindings;
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
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.last_mut() {
            Some(group) if group.len() < limit && key(&group[0]) == key(&item) => group.push(item),
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

/// A contiguous tensor as the kernels read it, in vectors.
pub(super) fn buffer(tensor: &CubeTensor, vector: usize) -> BufferArg {
    let vectors = tensor.meta.num_elements() / vector;
    // SAFETY: the tensor is contiguous, and this is its length in vectors.
    unsafe { BufferArg::from_raw_parts(tensor.handle.clone(), vectors) }
}

/// The widest vector, up to 4 values, that divides a tensor: what every runtime loads at once.
pub(super) fn vector_width(elements: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|w| elements.is_multiple_of(*w))
        .unwrap_or(1)
}
