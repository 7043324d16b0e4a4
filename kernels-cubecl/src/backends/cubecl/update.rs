//! The step of an optimizer: launches over parameters and all that belongs to them.

use burn_cubecl::tensor::CubeTensor;
use cubecl::{prelude::*, std::tensor::into_contiguous};

use super::{
    batch::{Batch, Item, arg, cubes},
    memory::{Laid, may_overwrite},
    plan::{Launch, Limits, units},
};
use crate::{
    kernel,
    update_row::{UpdateRule, has_master},
};

/// As [`Job::Update`](crate::Job::Update).
pub(super) fn update(
    mut tensors: Vec<CubeTensor>,
    rule: UpdateRule,
    limits: &Limits,
) -> Vec<CubeTensor> {
    let rows = tensors.pop().expect("the rows are last");
    let parameters = rule.parameters(tensors, |tensor| tensor.dtype);
    if parameters.is_empty() {
        return Vec::new();
    }
    let limits = Limits {
        // Where other passes have partial results, there is room for one more.
        buffers: limits.buffers + 1,
        units: units(&rows.client, kernel::UPDATE_UNITS),
        ..*limits
    };
    let batch = Batch::new(parameters.into_iter().map(item).collect(), &limits, 0, 0);
    let rows = match rows.meta.strides()[1] {
        1 => rows,
        _ => contiguous(rows, false),
    };
    for launch in &batch.plan.launches {
        step(&batch, launch, &rows, rule, limits.units);
    }
    let written = batch
        .items
        .into_iter()
        .flat_map(|item| item.into_iter().skip(1));
    written.map(|laid| laid.tensor).collect()
}

/// Launches the step of some parameters.
fn step(batch: &Batch, launch: &Launch, rows: &CubeTensor, rule: UpdateRule, most: u32) {
    let all = |of: usize| batch.args(launch, of);
    let first = batch.item(launch);
    let [gradient, parameter] = [0, 1].map(|of: usize| first[of].tensor.dtype);
    // In f32, the parameter is the first of what is kept in f32.
    let wide = 1 + usize::from(has_master(parameter));
    let units = kernel::update_units(launch.slots * first.len()).min(most);
    by_dtype!(narrow gradient, G => by_dtype!(narrow parameter, P => {
        // SAFETY: all of a parameter's runs are of one length, which the table has; units beyond neither read nor write.
        // Nobody else holds what is overwritten (`contiguous`). There is a row for each parameter.
        unsafe {
            kernel::update_many::launch_unchecked::<G, P>(
                &rows.client,
                cubes(launch.cubes),
                CubeDim::new_1d(units),
                launch.vector,
                all(0).collect(),
                (1..wide).flat_map(all).collect(),
                (wide..first.len()).flat_map(all).collect(),
                arg(rows),
                rows.meta.strides()[0] as u32,
                batch.table(),
                launch.from,
                launch.shift,
                rule,
                units,
            );
        }
    }));
}

/// Gradient, parameter, master if there is one, and states: in vectors of 16 bytes of f32, or of what divides all of them.
fn item(own: Vec<CubeTensor>) -> Item {
    let own = own.into_iter().enumerate();
    let mut item: Item = own
        .map(|(at, tensor)| Laid::dense(contiguous(tensor, at > 0)))
        .collect();
    let vector = item.iter().map(|laid| laid.vector).min().unwrap_or(1);
    item.iter_mut().for_each(|laid| laid.vector = vector);
    item
}

/// The tensor itself, or a copy of it if its values do not lie in the order of its dimensions, or if it will be written and may not be.
///
/// A copy of what is held takes another launch, and the memory that a new tensor would take.
fn contiguous(tensor: CubeTensor, written: bool) -> CubeTensor {
    let empty = tensor.meta.num_elements() == 0;
    if empty || tensor.is_contiguous() && (!written || may_overwrite(&tensor)) {
        return tensor;
    }
    let (client, device, dtype) = (tensor.client.clone(), tensor.device.clone(), tensor.dtype);
    let element = by_dtype!(narrow dtype, I => I::elem_type_native());
    let copy = into_contiguous(&client, tensor.binding(), element);
    CubeTensor::new(client, copy.handle, *copy.metadata, device, dtype)
}
