//! The step of an optimizer: launches over parameters and all that belongs to them.

use burn_cubecl::tensor::CubeTensor;
use cubecl::{prelude::*, std::tensor::into_contiguous};

use super::{
    launch::{Words, arg, slots, table},
    memory::{Laid, may_overwrite},
    plan::{Extent, Launch, Limits, Plan, units},
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
    let mut tensors = tensors.into_iter();
    let mut items = Vec::new();
    while let [_, parameter, ..] = tensors.as_slice() {
        let count = rule.tensors(parameter.dtype);
        let own = tensors.by_ref().take(count).enumerate();
        items.push(item(own.map(|(at, tensor)| contiguous(tensor, at > 0))));
    }
    let extents: Vec<_> = items.iter().map(extent).collect();
    let limits = Limits {
        // Where other passes have partial results, there is room for one more.
        buffers: limits.buffers + 1,
        units: units(&rows.client, kernel::UPDATE_UNITS),
        ..*limits
    };
    let plan = Plan::new(&extents, &limits, 0, 0);
    let table = table(&rows.client, &rows.device, &plan);
    let rows = match rows.meta.strides()[1] {
        1 => rows,
        _ => contiguous(rows, false),
    };
    for launch in &plan.launches {
        step(launch, &items, &rows, &table, rule, limits.units);
    }
    let written = items.into_iter().flat_map(|item| item.into_iter().skip(1));
    written.map(|laid| laid.tensor).collect()
}

/// Launches the step of some parameters.
fn step(
    launch: &Launch,
    items: &[Item],
    rows: &CubeTensor,
    table: &Words,
    rule: UpdateRule,
    most: u32,
) {
    let client = &rows.client;
    let all = |of: usize| slots(client, launch, move |part| &items[part.tensor][of]);
    let first = &items[launch.parts[0].tensor];
    // In f32, the parameter is the first of what is kept in f32.
    let wide = 1 + usize::from(has_master(first[1].tensor.dtype));
    let units = kernel::update_units(launch.slots * first.len()).min(most);
    with_float!(first[0].tensor.dtype, G => with_float!(first[1].tensor.dtype, P => {
        // SAFETY: all of a parameter's runs are of one length, which the table has; units beyond neither read nor write.
        // Nobody else holds what is overwritten (`contiguous`). There is a row for each parameter.
        unsafe {
            kernel::update_many::launch_unchecked::<G, P>(
                client,
                CubeCount::Static(launch.cubes as u32, 1, 1),
                CubeDim::new_1d(units),
                launch.vector,
                all(0).collect(),
                (1..wide).flat_map(all).collect(),
                (wide..first.len()).flat_map(all).collect(),
                rows.clone().into_buffer_arg(),
                rows.meta.strides()[0] as u32,
                arg(table),
                launch.from,
                launch.shift,
                rule,
                units,
            );
        }
    }));
}

/// Gradient, parameter, master if there is one, and states.
type Item = Vec<Laid>;

/// In vectors of 16 bytes of f32, or of what divides all of them.
fn item(tensors: impl Iterator<Item = CubeTensor>) -> Item {
    let mut item: Item = tensors.map(Laid::dense).collect();
    let vector = item.iter().map(|laid| laid.vector).min().unwrap_or(1);
    item.iter_mut().for_each(|laid| laid.vector = vector);
    item
}

/// Parameters share a launch that have one dtype, gradients of one, and one width of vectors.
fn extent(item: &Item) -> Extent<impl Ord + Copy + use<>> {
    let [gradient, parameter] = [&item[0], &item[1]];
    let dtypes = [gradient, parameter].map(|laid| laid.tensor.dtype.name());
    parameter.extent((dtypes, parameter.vector), item.len())
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
    let element = with_float!(dtype, I => I::elem_type_native());
    let copy = into_contiguous(&client, tensor.binding(), element);
    CubeTensor::new(client, copy.handle, *copy.metadata, device, dtype)
}
