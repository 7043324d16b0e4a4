use burn::tensor::DType;
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use cubecl::{client::Client, prelude::*};
use std::slice;

use super::{
    group::{dense, may_overwrite, split, tensors_per_launch, vector_width},
    launch::{Launcher, output_bytes},
};
use crate::{kernel, status::WORDS};

/// Units of a cube, where the device allows as many.
const UNITS: u32 = 256;
/// Vectors that a unit reads at least, so that a cube is worth its reduction.
const VECTORS_PER_UNIT: usize = 4;
/// Cubes that one tensor gets at most.
const MAX_CUBES: usize = 1024;
/// Cubes that a launch has in one dimension: what WebGPU grants.
const MAX_COUNT: usize = 65_535;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Yes,
    No,
}

/// What a group's kernel does, beside the dtype it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    InPlace,
    Write,
    Inspect,
}

pub(super) struct Item {
    /// Where the tensor stood in the list.
    pub(super) position: usize,
    pub(super) tensor: CubeTensor,
    pub(super) job: Job,
    pub(super) vector: usize,
    pub(super) cubes: usize,
}

/// Which launches a list needs.
pub(super) struct Plan {
    client: Client,
    device: CubeDevice,
    units: u32,
    items: Vec<Item>,
    /// The products of tensors without values, at their positions: no launch is for them.
    results: Vec<Option<CubeTensor>>,
}

impl Plan {
    pub(super) fn new(tensors: Vec<CubeTensor>, writes: Writes) -> Self {
        let client = tensors[0].client.clone();
        let device = tensors[0].device.clone();
        let units = units(&client, UNITS);
        let results = tensors.iter().map(empty_product).collect();
        let mut items: Vec<Item> = tensors
            .into_iter()
            .enumerate()
            .filter(|(_, tensor)| tensor.meta.num_elements() > 0)
            .map(|(position, tensor)| {
                let tensor = dense(tensor);
                let job = match writes {
                    Writes::No => Job::Inspect,
                    Writes::Yes if tensor.dtype == DType::F32 && may_overwrite(&tensor) => {
                        Job::InPlace
                    }
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
            device,
            units,
            items,
            results,
        }
    }

    /// Launches them. Returns the products in the order of the list, if there are any, and the status words.
    pub(super) fn run(self, inverse: Option<CubeTensor>) -> (Vec<CubeTensor>, CubeTensor) {
        let count = self.results.len();
        let cubes: usize = self.items.iter().map(|item| item.cubes).sum();
        let heads = count * kernel::HEAD;
        let words = heads + cubes * kernel::ROW;
        let bytes = words * size_of::<u32>();
        let partials = match self.items.len() == count {
            true => self.client.empty(bytes),
            // A tensor without values has no rows, which nobody writes.
            false => self.client.create_from_slice(&vec![0; bytes]),
        };

        let mut results = self.results;
        let mut launcher = Launcher::new(
            self.client.clone(),
            self.units,
            inverse,
            (partials.clone(), words),
            heads,
        );
        let limit = tensors_per_launch(&self.client);
        let most = self.client.properties().memory.max_page_size;
        let key = |item: &Item| (item.job, item.tensor.dtype, item.vector);
        let groups = split(self.items, |group, item| {
            group.len() < limit
                && key(&group[0]) == key(item)
                && output_bytes(group, &self.client)
                    + output_bytes(slice::from_ref(item), &self.client)
                    <= most
        });
        for group in groups {
            for (position, tensor) in launcher.group(group) {
                results[position] = Some(tensor);
            }
        }

        let status = self.client.empty(count * WORDS * size_of::<u32>());
        for from in (0..count).step_by(MAX_COUNT) {
            let cubes = (count - from).min(MAX_COUNT);
            // SAFETY: `partials` holds a head for each tensor, which says where its rows are, and all of them were
            // written; `status` holds `WORDS` words for each tensor; every tensor has a cube.
            unsafe {
                kernel::finish_status::launch_unchecked(
                    &self.client,
                    CubeCount::Static(cubes as u32, 1, 1),
                    CubeDim::new_1d(self.units),
                    BufferArg::from_raw_parts(partials.clone(), words),
                    BufferArg::from_raw_parts(status.clone(), count * WORDS),
                    from as u32,
                    self.units,
                );
            }
        }
        let status = CubeTensor::new_contiguous(
            self.client,
            self.device,
            [count * WORDS].into(),
            status,
            DType::I32,
        );
        (results.into_iter().flatten().collect(), status)
    }
}

fn empty_product(tensor: &CubeTensor) -> Option<CubeTensor> {
    (tensor.meta.num_elements() == 0).then(|| CubeTensor {
        dtype: DType::F32,
        ..tensor.clone()
    })
}

/// As many units as wanted, or as a cube of the device can have: a power of two, as a reduction halves them.
pub(super) fn units(client: &Client, wanted: u32) -> u32 {
    let most = client.properties().hardware.max_units_per_cube.max(1);
    1 << wanted.min(most).ilog2()
}
