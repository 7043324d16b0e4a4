//! CubeCL: groups of tensors of one dtype and vector width, a launch for each group, and one for the last reduction.

use burn::{
    backend::{
        TensorMetadata,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, bf16, f16},
};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{client::Client, prelude::*, server::Handle};

use crate::{
    kernel,
    ops::{AmpOps, TensorVec, UnscaledVec},
    status::WORDS,
};

/// Units of a cube, where the device allows as many.
const UNITS: u32 = 256;
/// Vectors that a unit reads at least, so that a cube is worth its reduction.
const VECTORS_PER_UNIT: usize = 4;
/// Cubes that one tensor gets at most.
const MAX_CUBES: usize = 1024;
/// Tensors that one launch takes at most, where the device allows as many: each has its own code in the kernel.
const MAX_TENSORS: usize = 28;
/// Bindings that are not tensors: inverse, partials, output, and what CubeCL adds for sizes and scalars.
const OTHER_BINDINGS: usize = 4;
/// Where a tensor may begin in a buffer that several share, in bytes: the strictest runtime's storage alignment.
const ALIGNMENT: usize = 256;

impl AmpOps for CubeBackend {
    fn amp_unscale(tensors: TensorVec<Self>, inverse: FloatTensor<Self>) -> UnscaledVec<Self> {
        let plan = Plan::new(tensors.tensors, Writes::Yes);
        let (tensors, status) = plan.run(Some(inverse));
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>) -> IntTensor<Self> {
        Plan::new(tensors.tensors, Writes::No).run(None).1
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Yes,
    No,
}

/// What a group's kernel does, beside the dtype it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    InPlace,
    Write,
    Inspect,
}

struct Item {
    /// Where the tensor stood in the list.
    position: usize,
    tensor: CubeTensor,
    job: Job,
    vector: usize,
    cubes: usize,
}

impl Item {
    fn vectors(&self) -> usize {
        self.tensor.meta.num_elements() / self.vector
    }
}

struct Plan {
    client: Client,
    units: u32,
    items: Vec<Item>,
    per_launch: usize,
}

impl Plan {
    fn new(tensors: Vec<CubeTensor>, writes: Writes) -> Self {
        let client = tensors[0].client.clone();
        let hardware = &client.properties().hardware;
        let units = UNITS.min(hardware.max_units_per_cube.max(1));
        // The reduction in a cube halves it again and again.
        let units = 1 << units.ilog2();
        let bindings = usize::try_from(hardware.max_bindings).unwrap_or(usize::MAX);
        let per_launch = bindings
            .saturating_sub(OTHER_BINDINGS)
            .clamp(1, MAX_TENSORS);

        let mut items: Vec<Item> = tensors
            .into_iter()
            .enumerate()
            .map(|(position, tensor)| {
                let tensor = into_contiguous(tensor);
                let job = match writes {
                    Writes::No => Job::Inspect,
                    Writes::Yes if tensor.dtype == DType::F32 && tensor.can_mut() => Job::InPlace,
                    Writes::Yes => Job::Write,
                };
                let vector = vector_width(tensor.meta.num_elements());
                let vectors = tensor.meta.num_elements() / vector;
                let cubes = vectors.div_ceil(units as usize * VECTORS_PER_UNIT);
                Item {
                    position,
                    tensor,
                    job,
                    vector,
                    cubes: cubes.clamp(1, MAX_CUBES),
                }
            })
            .collect();
        // Stable: tensors of one kind stay in the order of the list.
        items.sort_by_key(|item| (item.job as usize, item.tensor.dtype.name(), item.vector));
        Self {
            client,
            units,
            items,
            per_launch,
        }
    }

    fn run(self, inverse: Option<CubeTensor>) -> (Vec<CubeTensor>, CubeTensor) {
        let count = self.items.len();
        let rows = self.items.iter().map(|item| item.cubes).max().unwrap_or(1);
        let words = count * rows * kernel::ROW;
        let partials = self.client.empty(words * size_of::<u32>());
        let device = self.items[0].tensor.device.clone();

        let mut results: Vec<Option<CubeTensor>> = (0..count).map(|_| None).collect();
        let launcher = Launcher {
            client: self.client.clone(),
            units: self.units,
            inverse,
            partials: (partials.clone(), words),
            rows: rows as u32,
        };
        let mut items = self.items.into_iter().peekable();
        while let Some(item) = items.next() {
            let key = (item.job, item.tensor.dtype, item.vector);
            let mut group = vec![item];
            while group.len() < self.per_launch
                && let Some(item) =
                    items.next_if(|item| (item.job, item.tensor.dtype, item.vector) == key)
            {
                group.push(item);
            }
            for (position, tensor) in launcher.group(group) {
                results[position] = Some(tensor);
            }
        }

        let status = self.client.empty(count * WORDS * size_of::<u32>());
        // SAFETY: `partials` holds `count * rows` rows, the first of each tensor tells how many of them were
        // written, and `status` holds `WORDS` words for each tensor; a cube is launched for each tensor.
        unsafe {
            kernel::finish_status::launch_unchecked(
                &self.client,
                CubeCount::Static(count as u32, 1, 1),
                CubeDim::new_1d(self.units),
                BufferArg::from_raw_parts(partials, words),
                BufferArg::from_raw_parts(status.clone(), count * WORDS),
                rows as u32,
                self.units,
            );
        }
        let status = CubeTensor::new_contiguous(
            self.client,
            device,
            [count * WORDS].into(),
            status,
            DType::I32,
        );
        (results.into_iter().flatten().collect(), status)
    }
}

struct Launcher {
    client: Client,
    units: u32,
    inverse: Option<CubeTensor>,
    partials: (Handle, usize),
    rows: u32,
}

impl Launcher {
    /// Launches one kernel over a group of one job, dtype and vector width. Returns the results and their positions.
    fn group(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        match (group[0].job, group[0].tensor.dtype) {
            (Job::InPlace, _) => self.in_place(group),
            (Job::Write, DType::F16) => self.write::<f16>(group),
            (Job::Write, DType::BF16) => self.write::<bf16>(group),
            (Job::Write, _) => self.write::<f32>(group),
            (Job::Inspect, DType::F16) => self.inspect::<f16>(group),
            (Job::Inspect, DType::BF16) => self.inspect::<bf16>(group),
            (Job::Inspect, _) => self.inspect::<f32>(group),
        }
    }

    fn in_place(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        let (starts, positions, count) = shares(&group);
        let vector = group[0].vector;
        let tensors = group.iter().map(buffer).collect();
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it read nothing. No
        // other handle to these buffers exists (`can_mut`). `partials` has `rows` rows for every position.
        unsafe {
            kernel::unscale_in_place::launch_unchecked(
                &self.client,
                count,
                CubeDim::new_1d(self.units),
                vector,
                tensors,
                starts,
                self.inverse(),
                self.partials(),
                positions,
                self.rows,
                self.units,
            );
        }
        (group.into_iter())
            .map(|item| (item.position, item.tensor))
            .collect()
    }

    fn write<I: Float + CubeElement>(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        let (starts, positions, count) = shares(&group);
        let vector = group[0].vector;
        // One buffer for all results: a binding for each of them would halve the tensors of a launch.
        let mut offsets = Vec::with_capacity(group.len());
        let mut bytes = 0;
        for item in &group {
            offsets.push(bytes);
            let size = item.tensor.meta.num_elements() * size_of::<f32>();
            bytes += size.next_multiple_of(ALIGNMENT);
        }
        let buffer_size = bytes;
        let output = self.client.empty(buffer_size);
        let width = vector * size_of::<f32>();
        let places = offsets
            .iter()
            .map(|offset| (offset / width) as u32)
            .collect();
        let inputs = group.iter().map(buffer).collect();
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it neither read nor
        // write. Results begin at their offsets and do not overlap. `partials` has `rows` rows for every position.
        unsafe {
            kernel::unscale_many::launch_unchecked::<I, f32>(
                &self.client,
                count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                BufferArg::from_raw_parts(output.clone(), buffer_size / width),
                places,
                starts,
                self.inverse(),
                self.partials(),
                positions,
                self.rows,
                self.units,
            );
        }
        (group.into_iter().zip(offsets))
            .map(|(item, offset)| {
                let shape = item.tensor.shape();
                let end = offset + shape.num_elements() * size_of::<f32>();
                let handle = output
                    .clone()
                    .offset_start(offset as u64)
                    .offset_end((buffer_size - end) as u64);
                let tensor = CubeTensor::new_contiguous(
                    self.client.clone(),
                    item.tensor.device.clone(),
                    shape,
                    handle,
                    DType::F32,
                );
                (item.position, tensor)
            })
            .collect()
    }

    fn inspect<I: Float + CubeElement>(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        let (starts, positions, count) = shares(&group);
        let vector = group[0].vector;
        let inputs = group.iter().map(buffer).collect();
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it read nothing.
        // `partials` has `rows` rows for every position.
        unsafe {
            kernel::inspect_many::launch_unchecked::<I>(
                &self.client,
                count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                starts,
                self.partials(),
                positions,
                self.rows,
                self.units,
            );
        }
        Vec::new()
    }

    fn inverse(&self) -> BufferArg {
        let inverse = self.inverse.clone().expect("unscaling has an inverse");
        inverse.into_buffer_arg()
    }

    fn partials(&self) -> BufferArg {
        // SAFETY: the length is that of the buffer.
        unsafe { BufferArg::from_raw_parts(self.partials.0.clone(), self.partials.1) }
    }
}

/// Which cubes work at which tensor: those from its start to the next one's.
fn shares(group: &[Item]) -> (SequenceArg<u32>, SequenceArg<u32>, CubeCount) {
    let mut starts = SequenceArg::new();
    let mut positions = SequenceArg::new();
    let mut cubes = 0;
    for item in group {
        starts.push(cubes);
        positions.push(item.position as u32);
        cubes += item.cubes as u32;
    }
    starts.push(cubes);
    (starts, positions, CubeCount::Static(cubes, 1, 1))
}

fn buffer(item: &Item) -> BufferArg {
    // SAFETY: the tensor is contiguous, and this is its length in vectors.
    unsafe { BufferArg::from_raw_parts(item.tensor.handle.clone(), item.vectors()) }
}

/// The widest vector, up to 4 values, that divides a tensor: what every runtime loads at once.
fn vector_width(elements: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|w| elements.is_multiple_of(*w))
        .unwrap_or(1)
}
