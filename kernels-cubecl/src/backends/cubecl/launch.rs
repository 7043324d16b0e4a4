use burn::{
    backend::TensorMetadata,
    tensor::{DType, bf16, f16},
};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{client::Client, prelude::*, server::Handle};

use super::{
    group::{buffer, starts},
    plan::{Item, Job},
};
use crate::kernel;

/// Where a tensor may begin in a buffer that several share, in bytes: the strictest runtime's storage alignment.
const ALIGNMENT: usize = 256;

/// Launches kernels over groups of tensors of one job, dtype and vector width.
pub(super) struct Launcher {
    client: Client,
    units: u32,
    inverse: Option<CubeTensor>,
    partials: (Handle, usize),
    rows: u32,
}

/// Which cubes work at which tensor of a group, and where they write what they have seen.
struct Share {
    starts: SequenceArg<u32>,
    positions: SequenceArg<u32>,
    count: CubeCount,
}

impl Share {
    fn new(group: &[Item]) -> Self {
        let (starts, cubes) = starts(group.iter().map(|item| item.cubes));
        let positions = group.iter().map(|item| item.position as u32).collect();
        Self {
            starts,
            positions,
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
        rows: u32,
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
    pub(super) fn group(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
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
        let share = Share::new(&group);
        let vector = group[0].vector;
        let tensors = buffers(&group);
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it read nothing. No
        // other handle to these buffers exists (`can_mut`). `partials` has `rows` rows for every position.
        unsafe {
            kernel::unscale_in_place::launch_unchecked(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                tensors,
                share.starts,
                self.inverse(),
                self.partials(),
                share.positions,
                self.rows,
                self.units,
            );
        }
        (group.into_iter())
            .map(|item| (item.position, item.tensor))
            .collect()
    }

    fn write<I: Float + CubeElement>(&self, group: Vec<Item>) -> Vec<(usize, CubeTensor)> {
        let share = Share::new(&group);
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
        let inputs = buffers(&group);
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it neither read nor
        // write. Results begin at their offsets and do not overlap. `partials` has `rows` rows for every position.
        unsafe {
            kernel::unscale_many::launch_unchecked::<I, f32>(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                BufferArg::from_raw_parts(output.clone(), buffer_size / width),
                places,
                share.starts,
                self.inverse(),
                self.partials(),
                share.positions,
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
        let share = Share::new(&group);
        let vector = group[0].vector;
        let inputs = buffers(&group);
        // SAFETY: every tensor is contiguous and its length in vectors is exact; units beyond it read nothing.
        // `partials` has `rows` rows for every position.
        unsafe {
            kernel::inspect_many::launch_unchecked::<I>(
                &self.client,
                share.count,
                CubeDim::new_1d(self.units),
                vector,
                inputs,
                share.starts,
                self.partials(),
                share.positions,
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

fn buffers<T: LaunchArg<RuntimeArg = BufferArg>>(group: &[Item]) -> SequenceArg<T> {
    let buffers = group.iter().map(|item| buffer(&item.tensor, item.vector));
    buffers.collect()
}
