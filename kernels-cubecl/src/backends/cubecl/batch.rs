//! Tensors as kernels read them, in batches that share launches.

use burn::tensor::{DType, Shape};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use burn_std::{Strides, id::StreamId, is_dense};
use cubecl::zspace::striding::try_check_pitched_row_major_strides;
use cubecl::{prelude::*, server::Handle};
use std::sync::Arc;

use super::kept::{Kept, Key, Planned, SPARE};
use super::plan::{Extent, Launch, Limits, MAX_VALUES, Plan, Run};

/// Bits that a unit loads at once, on every GPU.
const LOAD: u32 = 128;

/// A tensor as the kernels read it: a run of values, which may have padding at the ends of its rows.
pub(super) struct Laid {
    pub(super) tensor: CubeTensor,
    pub(super) run: Run,
}

impl Laid {
    /// In vectors that divide it, or its rows where they are padded.
    fn new(tensor: CubeTensor, span: usize, padding: Option<(usize, usize)>) -> Self {
        let vector = vector(&tensor, padding.map_or(span, |(pitch, _)| pitch));
        let span = span.next_multiple_of(vector);
        let run = Run {
            span,
            vector,
            padding,
        };
        Self { tensor, run }
    }

    /// The tensor as it lies, if its values fill a buffer in any order of dimensions, or else a contiguous copy.
    pub(super) fn dense(tensor: CubeTensor) -> Self {
        let tensor = match is_dense(tensor.meta.shape(), tensor.meta.strides()) {
            true => tensor,
            false => into_contiguous(tensor),
        };
        let span = tensor.meta.num_elements();
        Self::new(tensor, span, None)
    }

    /// The same, but rows may be padded, as CUDA's and HIP's are where that aligns them.
    pub(super) fn padded(tensor: CubeTensor) -> Self {
        let Some((pitch, columns)) = padding(tensor.meta.shape(), tensor.meta.strides()) else {
            return Self::dense(tensor);
        };
        let rows = tensor.meta.num_elements() / columns;
        // Of a view, the last row may have no padding.
        let there = tensor.handle.size_in_used() as usize / tensor.elem_size();
        let laid = Self::new(tensor, (rows - 1) * pitch + columns, Some((pitch, columns)));
        match laid.run.span <= there.min(MAX_VALUES) {
            true => laid,
            false => Self::dense(laid.tensor),
        }
    }

    /// A new tensor whose values lie in the same way.
    pub(super) fn product(&self, dtype: DType) -> Self {
        let (tensor, run) = (&self.tensor, self.run);
        let pitch = run.padding.map_or(1, |(pitch, _)| pitch);
        let handle = match run.span.next_multiple_of(pitch) {
            // The kernels do not write it.
            0 => tensor.handle.clone(),
            length => tensor.client.empty(length * dtype.size()),
        };
        let (client, device) = (tensor.client.clone(), tensor.device.clone());
        let tensor = CubeTensor::new(client, handle, *tensor.meta.clone(), device, dtype);
        Self { tensor, run }
    }

    /// A part of it, as the kernels read it, in vectors.
    pub(super) fn part(&self, first: usize, values: usize) -> BufferArg {
        let size = self.tensor.elem_size();
        let handle = self.tensor.handle.clone();
        let handle = handle.offset_start((first * size) as u64);
        // Of rows that are padded, the last may have no padding.
        let behind = handle.size_in_used().saturating_sub((values * size) as u64);
        let handle = handle.offset_end(behind);
        // SAFETY: the run is the tensor's own memory, and this is its length in vectors.
        unsafe { BufferArg::from_raw_parts(handle, values / self.run.vector) }
    }
}

/// The stride of rows and their values, if there is padding between rows and nowhere else.
pub(super) fn padding(shape: &Shape, strides: &Strides) -> Option<(usize, usize)> {
    let rank = shape.len();
    if rank < 2 || shape.contains(&0) {
        return None;
    }
    try_check_pitched_row_major_strides(shape, strides).ok()?;
    let (pitch, columns) = (strides[rank - 2], shape[rank - 1]);
    (pitch > columns).then_some((pitch, columns))
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

/// Finds out which tensors of a list may be overwritten, and waits for CubeCL's queue once at most: nothing that writes them may be queued later.
#[derive(Default)]
pub(super) struct Owner {
    /// The queue was waited for.
    waited: bool,
}

impl Owner {
    /// Whether nobody else holds the memory, nor will read it: what Burn's `to_data` returns is read when it is looked at.
    ///
    /// Launches that are still queued hold memory in the same way. They have let go when the queue is done, which is waited for then;
    /// not for the device. CubeCL's runtime for CPUs lets go when the work is done: there a gradient that was just made is taken for one
    /// that was read.
    ///
    /// What is recorded holds memory for good, and runs in its place. Memory that another thread has made stays as it is: CubeCL has those who read it wait for
    /// that thread alone (`docs/upstream/in-place-across-threads.md`).
    pub(super) fn may_overwrite(&mut self, tensor: &CubeTensor) -> bool {
        let is_bound = || tensor.handle.memory.is_bound();
        if !tensor.can_mut() {
            return false;
        }
        if tensor.client.is_capturing() {
            return true;
        }
        if tensor.handle.stream != StreamId::current() {
            return false;
        }
        if is_bound() && !self.waited {
            // What it finds is reported again where the results are read.
            let _ = tensor.client.check([]);
            self.waited = true;
        }
        !is_bound()
    }
}

/// A tensor, and all that is read and written beside it: of one length, and in vectors of one width.
pub(super) type Item = Vec<Laid>;

/// Items, and the launches over all of them.
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    planned: Arc<Planned>,
    spares: Vec<Handle>,
}

impl Batch {
    /// Of a list that is not empty; `measures` and `edge` are as for a [`Plan`].
    pub(super) fn new(items: Vec<Item>, limits: &Limits, measures: bool, edge: u32) -> Self {
        let key = Key {
            limits: *limits,
            measures,
            edge,
            extents: items.iter().map(extent).collect(),
        };
        let missing = |launch: &Launch| {
            let missing = launch.slots - launch.parts.len();
            missing * items[launch.parts[0].tensor].len()
        };
        let (planned, spares) = Kept::of(&items[0][0].tensor, |kept, client| {
            let planned = kept.planned(key, client);
            let most = planned.plan.launches.iter().map(missing).max();
            let spares = kept.spares(most.unwrap_or(0), client);
            (planned, spares)
        });
        Self {
            items,
            planned,
            spares,
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    /// A tensor on the device of all.
    pub(super) fn like(&self) -> &CubeTensor {
        &self.items[0][0].tensor
    }

    /// One of the items of a launch.
    pub(super) fn item(&self, launch: &Launch) -> &Item {
        &self.items[launch.parts[0].tensor]
    }

    /// What a launch takes of its items at this place of each: as many bindings as its kernel is compiled for. Those that no item needs are
    /// small buffers that nobody reads or writes, each bound once in a launch.
    pub(super) fn args(&self, launch: &Launch, place: usize) -> impl Iterator<Item = BufferArg> {
        let parts = launch.parts.iter();
        let args =
            parts.map(move |part| self.items[part.tensor][place].part(part.first, part.values));
        let missing = launch.slots - launch.parts.len();
        let spares = &self.spares[place * missing..][..missing];
        // SAFETY: it has as many bytes.
        let spare =
            |spare: &Handle| unsafe { BufferArg::from_raw_parts(spare.clone(), SPARE / 16) };
        args.chain(spares.iter().map(spare))
    }

    /// The table of all launches.
    pub(super) fn table(&self) -> BufferArg {
        // SAFETY: the length is that of the buffer.
        unsafe {
            BufferArg::from_raw_parts(self.planned.table.clone(), self.planned.plan.table.len())
        }
    }
}

/// What a plan has to know of an item.
fn extent(item: &Item) -> Extent {
    let number = |laid: &Laid| match laid.tensor.dtype {
        DType::BF16 => 1,
        DType::F16 => 2,
        _ => 3,
    };
    Extent {
        buffers: item.len(),
        // Four bits each.
        dtypes: item.iter().fold(0, |all, laid| all << 4 | number(laid)),
        run: item[0].run,
    }
}

/// New floats, or other words, on the device of a tensor.
pub(super) fn floats(like: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    let (client, device, shape) = (like.client.clone(), like.device.clone(), shape.into());
    let handle = client.empty(shape.num_elements() * DType::F32.size());
    CubeTensor::new_contiguous(client, device, shape, handle, DType::F32)
}

/// A tensor as kernels take it.
pub(super) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// Tensors as a kernel takes them that may do without.
pub(super) fn args<A: FromIterator<BufferArg>>(tensors: impl IntoIterator<Item = CubeTensor>) -> A {
    let tensors = tensors.into_iter();
    tensors.map(CubeTensor::into_buffer_arg).collect()
}

/// Cubes in a row.
pub(super) fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}
