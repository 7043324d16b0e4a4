//! Passes that measure and count, and the schedule of a loss scale.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    batch::{Batch, Item, arg, args, cubes, floats},
    memory::{Laid, may_overwrite},
    plan::{Launch, Limits, units},
};
use crate::{
    kernel::{self, BIG, Form, InPlace, Inspect, Mode, ROW, Work, Write},
    rows::FIELDS,
    scale_state::WORDS,
    update_row::{self, UpdateRule},
};

/// Cubes that a launch has in one dimension: what WebGPU grants.
const MAX_COUNT: usize = 65_535;

/// What a pass multiplies by, and whether products keep their tensors' dtypes.
pub(super) struct Scale {
    pub(super) inverse: CubeTensor,
    pub(super) keep_dtype: bool,
}

/// A tensor, and behind it its product, where that is not written in place.
fn item(tensor: CubeTensor, scale: Option<&Scale>) -> Item {
    let laid = Laid::padded(tensor);
    let dtype = laid.tensor.dtype;
    let product = scale.and_then(|scale| match scale.keep_dtype || dtype == DType::F32 {
        true if may_overwrite(&laid.tensor) => None,
        true => Some(laid.product(dtype)),
        false => Some(laid.product(DType::F32)),
    });
    [laid].into_iter().chain(product).collect()
}

/// Measures tensors, after scaling if there is one. Returns the products, if there are any, and the status.
pub(super) fn pass(
    tensors: Vec<CubeTensor>,
    scale: Option<Scale>,
    edge: f32,
    limits: &Limits,
) -> Vec<CubeTensor> {
    let items = tensors
        .into_iter()
        .map(|tensor| item(tensor, scale.as_ref()));
    let planes = kernel::rows(limits.units, limits.plane);
    let batch = Batch::new(items.collect(), limits, planes as usize, edge.to_bits());
    let partials = floats(&batch.items[0][0].tensor, [batch.plan.rows.max(1) * ROW]);
    let pass = Pass {
        batch,
        partials,
        scale,
        limit: edge.to_bits().min(BIG),
        limits,
    };
    for launch in &pass.batch.plan.launches {
        let item = pass.batch.item(launch);
        let product = item.get(1).map(|product| product.tensor.dtype);
        by_dtype!(narrow item[0].tensor.dtype, I => match (&pass.scale, product) {
            (None, _) => pass.launch::<Inspect, I, f32>(launch),
            (_, None) => pass.launch::<InPlace, I, I>(launch),
            (_, Some(DType::F32)) => pass.launch::<Write, I, f32>(launch),
            (_, Some(_)) => pass.launch::<Write, I, I>(launch),
        });
    }
    let status = pass.finish();
    let items = pass
        .batch
        .items
        .into_iter()
        .filter(|_| pass.scale.is_some());
    let products = items
        .filter_map(|mut item| item.pop())
        .map(|laid| laid.tensor);
    products.chain([status]).collect()
}

struct Pass<'a> {
    batch: Batch,
    partials: CubeTensor,
    scale: Option<Scale>,
    /// Bits of magnitudes that are looked at twice.
    limit: u32,
    limits: &'a Limits,
}

impl Pass<'_> {
    fn launch<W: Work, I: Float + CubeElement, O: Float + CubeElement>(&self, launch: &Launch) {
        let laid = &self.batch.item(launch)[0];
        let (units, plane) = (self.limits.units, self.limits.plane);
        let form = Form::new::<W, I>(units, plane, laid.vector, laid.padding.is_some());
        let products = match W::MODE {
            Mode::Write => self.batch.args(launch, 1).collect(),
            _ => SequenceArg::new(),
        };
        let factor = self.scale.iter().map(|scale| scale.inverse.clone());
        // SAFETY: runs of tensors and products are exact, and the table says how long they are; units beyond neither
        // read nor write. Nobody else holds what is overwritten (`may_overwrite`).
        // `partials` has a row wherever the table says.
        unsafe {
            kernel::measure::launch_unchecked::<W, I, O>(
                &laid.tensor.client,
                cubes(launch.cubes),
                CubeDim::new_1d(form.units),
                launch.vector,
                self.batch.args(launch, 0).collect(),
                products,
                args(factor),
                arg(&self.partials),
                self.batch.table(),
                launch.from,
                launch.shift,
                self.limit,
                form,
            );
        }
    }

    /// The status, of what all launches have found.
    fn finish(&self) -> CubeTensor {
        let (client, count) = (&self.partials.client, self.batch.items.len());
        let units = units(client, kernel::FINISH_UNITS);
        let status = floats(&self.partials, [count * FIELDS]);
        for first in (0..count).step_by(MAX_COUNT) {
            // SAFETY: the table says which rows of `partials` a tensor has, and all were written; `status` has `FIELDS`
            // floats for each tensor; every tensor has a cube.
            unsafe {
                kernel::finish_status::launch_unchecked(
                    client,
                    cubes((count - first).min(MAX_COUNT)),
                    CubeDim::new_1d(units),
                    arg(&self.partials),
                    arg(&status),
                    self.batch.table(),
                    self.batch.plan.last,
                    first as u32,
                    units,
                );
            }
        }
        status
    }
}

/// The state of a loss scale after a step.
pub(super) fn advance(
    state: CubeTensor,
    rows: CubeTensor,
    border: Option<CubeTensor>,
) -> CubeTensor {
    let next = floats(&state, [WORDS]);
    // SAFETY: both states have `WORDS` words; of the rows, whole ones are read.
    unsafe {
        kernel::advance::launch_unchecked(
            &next.client,
            cubes(1),
            CubeDim::new_1d(1),
            state.into_buffer_arg(),
            rows.into_buffer_arg(),
            args(border),
            arg(&next),
        );
    }
    next
}

/// Rows of an update, decided by the state of a loss scale.
pub(super) fn decide(
    undecided: CubeTensor,
    state: CubeTensor,
    clip: Vec<CubeTensor>,
    rule: UpdateRule,
) -> CubeTensor {
    let parameters = undecided.meta.num_elements() / update_row::UNDECIDED;
    let rows = floats(&state, [parameters, update_row::ROW]);
    let units = units(&rows.client, kernel::FINISH_UNITS);
    // SAFETY: there are a row, a time and a gradient for each parameter; units beyond neither read nor write. The state has `WORDS` words.
    // Table and status have an entry for each gradient.
    unsafe {
        kernel::decide::launch_unchecked(
            &rows.client,
            cubes(parameters.div_ceil(units as usize)),
            CubeDim::new_1d(units),
            undecided.into_buffer_arg(),
            state.into_buffer_arg(),
            args(clip),
            arg(&rows),
            rule,
        );
    }
    rows
}

/// Counts by exponent: one row for each cube, and the sum of the rows.
pub(super) fn histogram(tensors: Vec<CubeTensor>, limits: &Limits) -> CubeTensor {
    let items = tensors.into_iter().map(|tensor| vec![Laid::dense(tensor)]);
    let batch = Batch::new(items.collect(), limits, 1, 0);
    let first = &batch.items[0][0].tensor;
    let units = units(&first.client, kernel::HISTOGRAM_UNITS);
    let count: usize = batch.plan.launches.iter().map(|launch| launch.cubes).sum();
    let rows = floats(first, [count.max(1) * kernel::BINS as usize]);
    let mut row = 0;
    for launch in &batch.plan.launches {
        // SAFETY: runs of tensors are exact, and the table says how long they are; units beyond read nothing. There is
        // a row for each cube.
        by_dtype!(narrow batch.item(launch)[0].tensor.dtype, I => unsafe {
            kernel::histogram_many::launch_unchecked::<I>(
                &rows.client,
                cubes(launch.cubes),
                CubeDim::new_1d(units),
                launch.vector,
                batch.args(launch, 0).collect(),
                batch.table(),
                launch.from,
                launch.shift,
                arg(&rows),
                row,
                units,
            )
        });
        row += launch.cubes as u32;
    }
    let sums = floats(&rows, [2 * kernel::BINS as usize]);
    // SAFETY: there are `row` rows, all written; `sums` has two floats for each bin, and each bin has a cube.
    unsafe {
        kernel::finish_histogram::launch_unchecked(
            &rows.client,
            cubes(kernel::BINS as usize),
            CubeDim::new_1d(units),
            arg(&rows),
            arg(&sums),
            row,
            units,
        );
    }
    sums
}
