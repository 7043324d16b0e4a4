use burn::tensor::{DType, bf16, f16};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{client::Client, prelude::*, server::Handle};

use super::{
    group::{buffer, dense, groups, starts, tensors_per_launch, vector_width},
    plan::units,
};
use crate::kernel;

/// Vectors that a unit counts at least, so that a cube is worth the sum of its tables.
const VECTORS_PER_UNIT: usize = 32;
/// Cubes that one tensor gets at most.
const MAX_CUBES: usize = 512;

struct Item {
    tensor: CubeTensor,
    vector: usize,
    cubes: usize,
}

/// One row of counts for each cube, and the sum of the rows.
pub(super) fn run(tensors: Vec<CubeTensor>) -> CubeTensor {
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let units = units(&client, kernel::HISTOGRAM_UNITS);
    let mut items: Vec<Item> = (tensors.into_iter())
        .filter(|tensor| tensor.meta.num_elements() > 0)
        .map(|tensor| {
            let tensor = dense(tensor);
            let vector = vector_width(tensor.meta.num_elements());
            let vectors = tensor.meta.num_elements() / vector;
            let cubes = vectors.div_ceil(units as usize * VECTORS_PER_UNIT);
            Item {
                tensor,
                vector,
                cubes: cubes.clamp(1, MAX_CUBES),
            }
        })
        .collect();
    let key = |item: &Item| (item.tensor.dtype.name(), item.vector);
    items.sort_by_key(key);

    let bins = kernel::BINS as usize;
    if items.is_empty() {
        let sums = client.create_from_slice(&vec![0; 2 * bins * size_of::<u32>()]);
        return CubeTensor::new_contiguous(client, device, [2 * bins].into(), sums, DType::I32);
    }
    let count: usize = items.iter().map(|item| item.cubes).sum();
    let rows = client.empty(count * bins * size_of::<u32>());
    let launcher = Launcher {
        client: &client,
        units,
        rows: (&rows, count * bins),
    };
    let mut row = 0;
    for group in groups(items, tensors_per_launch(&client), key) {
        row += launcher.group(&group, row);
    }

    let sums = client.empty(2 * bins * size_of::<u32>());
    // SAFETY: `rows` holds `count` rows, all written; `sums` two words for each bin, and each bin has a cube.
    unsafe {
        kernel::finish_histogram::launch_unchecked(
            &client,
            CubeCount::Static(kernel::BINS, 1, 1),
            CubeDim::new_1d(units),
            BufferArg::from_raw_parts(rows, count * bins),
            BufferArg::from_raw_parts(sums.clone(), 2 * bins),
            count as u32,
            units,
        );
    }
    CubeTensor::new_contiguous(client, device, [2 * bins].into(), sums, DType::I32)
}

struct Launcher<'a> {
    client: &'a Client,
    units: u32,
    rows: (&'a Handle, usize),
}

impl Launcher<'_> {
    /// Launches one kernel, whose rows begin at `row`. Returns how many it writes.
    fn group(&self, group: &[Item], row: u32) -> u32 {
        match group[0].tensor.dtype {
            DType::F16 => self.launch::<f16>(group, row),
            DType::BF16 => self.launch::<bf16>(group, row),
            _ => self.launch::<f32>(group, row),
        }
    }

    fn launch<I: Float + CubeElement>(&self, group: &[Item], row: u32) -> u32 {
        let (starts, cubes) = starts(group.iter().map(|item| item.cubes));
        let buffers = group.iter().map(|item| buffer(&item.tensor, item.vector));
        // SAFETY: every tensor is dense and its length in vectors is exact; units beyond it read nothing. There
        // is a row for each cube.
        unsafe {
            kernel::histogram_many::launch_unchecked::<I>(
                self.client,
                CubeCount::Static(cubes, 1, 1),
                CubeDim::new_1d(self.units),
                group[0].vector,
                buffers.collect(),
                starts,
                BufferArg::from_raw_parts(self.rows.0.clone(), self.rows.1),
                row,
                self.units,
            );
        }
        cubes
    }
}
