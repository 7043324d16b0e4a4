use burn::tensor::{DType, bf16, f16};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{client::Client, prelude::*, server::Handle};

use super::{
    group::{buffer, starts},
    plan::{Item, Job},
};
use crate::kernel;

/// Bytes of the buffer that the products of a group share, up to 28 of them: a buffer for each would halve the tensors
/// of a launch.
pub(super) fn output_bytes(group: &[Item], client: &Client) -> u64 {
    let writes = group.iter().filter(|item| item.job == Job::Write);
    writes.map(|item| product_bytes(item, client) as u64).sum()
}

/// Bytes of one product, up to where the next one may begin.
fn product_bytes(item: &Item, client: &Client) -> usize {
    let widest = 4 * size_of::<f32>();
    let alignment = client.properties().memory.alignment as usize;
    let bytes = item.tensor.meta.num_elements() * size_of::<f32>();
    bytes.next_multiple_of(alignment.max(widest))
}

/// Launches kernels over groups of tensors of one job, dtype and vector width.
pub(super) struct Launcher {
    client: Client,
    units: u32,
    inverse: Option<CubeTensor>,
    partials: (Handle, usize),
    /// The word of `partials` at which the rows of the next launch begin.
    rows: usize,
}

/// Which cubes work at which tensor of a group.
struct Share {
    lengths: SequenceArg<u32>,
    starts: SequenceArg<u32>,
    places: SequenceArg<u32>,
    count: CubeCount,
}

impl Share {
    fn new(group: &[Item], cubes: u32, starts: SequenceArg<u32>) -> Self {
        let length = |item: &Item| (item.tensor.meta.num_elements() / item.vector) as u32;
        Self {
            lengths: group.iter().map(length).collect(),
            starts,
            places: group.iter().map(|item| item.position as u32).collect(),
            count: CubeCount::Static(cubes, 1, 1),
        }
    }
}

impl Launcher {
    pub(super) fn new(
        client: Client,
        units: u32,
        inverse: Option<CubeTensor>,
        partials: (Handle, usize),
        rows: usize,
    ) -> Self {
        Self {
            client,
            units,
            inverse,
            partials,
            rows,
        }
    }

    /// Launches one kernel. Returns the results and their positions in the list.
    pub(super) fn group(&mut self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        let (starts, cubes) = starts(group.iter().map(|item| item.cubes));
        let share = Share::new(&group, cubes, starts);
        let results = match (group[0].job, group[0].tensor.dtype) {
            (Job::InPlace, _) => self.in_place(group, share),
            (Job::Write, DType::F16) => self.write::<f16>(group, share),
            (Job::Write, DType::BF16) => self.write::<bf16>(group, share),
            (Job::Write, _) => self.write::<f32>(group, share),
            (Job::Inspect, DType::F16) => self.inspect::<f16>(group, share),
            (Job::Inspect, DType::BF16) => self.inspect::<bf16>(group, share),
            (Job::Inspect, _) => self.inspect::<f32>(group, share),
        };
        self.rows += cubes as usize * kernel::ROW;
        results
    }

    fn in_place(&self, group: Vec<Item>, share: Share) -> Vec<(usize, CubeTensor)> {
        let vector = group[0].vector;
        let tensors = buffers(&group);
        // SAFETY: every tensor is dense and its length in vectors is exact; units beyond it read nothing. No
        // other handle to these buffers exists (`can_mut`). `partials` has a row for every cube from
        // `rows` on.
        unsafe {
            kernel::unscale_in_place::launch_unchecked(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                tensors,
                share.lengths,
                share.starts,
                self.inverse(),
                self.partials(),
                share.places,
                self.rows as u32,
                self.units,
            );
        }
        (group.into_iter())
            .map(|item| (item.position, item.tensor))
            .collect()
    }

    fn write<I: Float + CubeElement>(
        &self,
        group: Vec<Item>,
        share: Share,
    ) -> Vec<(usize, CubeTensor)> {
        let vector = group[0].vector;
        let mut offsets = Vec::with_capacity(group.len());
        let mut bytes = 0;
        for item in &group {
            offsets.push(bytes);
            bytes += product_bytes(item, &self.client);
        }
        let buffer_size = bytes;
        let output = self.client.empty(buffer_size);
        let width = vector * size_of::<f32>();
        let places = offsets
            .iter()
            .map(|offset| (offset / width) as u32)
            .collect();
        let inputs = buffers(&group);
        // SAFETY: every tensor is dense and its length in vectors is exact; units beyond it neither read nor
        // write. Results begin at their offsets and do not overlap. `partials` has a row for every cube from
        // `rows` on.
        unsafe {
            kernel::unscale_many::launch_unchecked::<I, f32>(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                BufferArg::from_raw_parts(output.clone(), buffer_size / width),
                places,
                share.lengths,
                share.starts,
                self.inverse(),
                self.partials(),
                share.places,
                self.rows as u32,
                self.units,
            );
        }
        (group.into_iter().zip(offsets))
            .map(|(item, offset)| {
                let end = offset + item.tensor.meta.num_elements() * size_of::<f32>();
                let handle = output
                    .clone()
                    .offset_start(offset as u64)
                    .offset_end((buffer_size - end) as u64);
                // Values lie in the order in which those of the gradient do.
                let tensor = CubeTensor::new(
                    self.client.clone(),
                    handle,
                    *item.tensor.meta.clone(),
                    item.tensor.device.clone(),
                    DType::F32,
                );
                (item.position, tensor)
            })
            .collect()
    }

    fn inspect<I: Float + CubeElement>(
        &self,
        group: Vec<Item>,
        share: Share,
    ) -> Vec<(usize, CubeTensor)> {
        let vector = group[0].vector;
        let inputs = buffers(&group);
        // SAFETY: every tensor is dense and its length in vectors is exact; units beyond it read nothing.
        // `partials` has a row for every cube from
        // `rows` on.
        unsafe {
            kernel::inspect_many::launch_unchecked::<I>(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                share.lengths,
                share.starts,
                self.partials(),
                share.places,
                self.rows as u32,
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

fn buffers<T: LaunchArg<RuntimeArg = BufferArg>>(group: &[Item]) -> SequenceArg<T> {
    let buffers = group.iter().map(|item| buffer(&item.tensor, item.vector));
    buffers.collect()
}
