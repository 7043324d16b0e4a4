//! The launches of all kernels.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, FloatDType};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{prelude::*, std::tensor::into_contiguous as copied};

use super::batch::{Batch, Item, Laid, Owner, arg, args, cubes, floats};
use super::plan::{Launch, Limits, units};
use crate::job::{Scale, Scaling, Weights, product_dtype};
use crate::kernel::observe::{BIG, ROW};
use crate::kernel::pass::{self, Form, Mode};
use crate::kernel::{elementwise, finish, histogram, schedule, update};
use crate::{UpdateRule, backends::compose, clip, rule::WORDS, status::FIELDS, step};

/// Cubes that a launch has in one dimension: what WebGPU grants.
const MAX_COUNT: usize = 65_535;

/// Tensors, each with its product behind it, where that is not written in place.
fn items(tensors: Vec<CubeTensor>, factor: &Scaling<CubeTensor>) -> Vec<Item> {
    // All copies are queued before the owner waits for the queue, which it does once.
    let laid: Vec<_> = tensors.into_iter().map(Laid::padded).collect();
    let mut owner = Owner::default();
    let item = |laid: Laid| {
        let dtype = laid.tensor.dtype;
        let product = factor.as_ref().and_then(|(_, keep_dtype)| {
            let made = product_dtype(dtype, *keep_dtype);
            (made != dtype || !owner.may_overwrite(&laid.tensor)).then(|| laid.product(made))
        });
        [laid].into_iter().chain(product).collect()
    };
    laid.into_iter().map(item).collect()
}

/// Measures tensors, after scaling if there is a factor. Returns the products then, and the status.
pub(super) fn pass(
    limits: &Limits,
    tensors: Vec<CubeTensor>,
    factor: Scaling<CubeTensor>,
    edge: f32,
) -> Vec<CubeTensor> {
    let batch = Batch::new(items(tensors, &factor), limits, true, edge.to_bits());
    let partials = floats(batch.like(), [batch.plan().rows.max(1) * ROW]);
    let factor = factor.map(|(factor, _)| factor);
    for launch in &batch.plan().launches {
        let item = batch.item(launch);
        let input = item[0].tensor.dtype;
        let (mode, output) = match (&factor, item.get(1)) {
            (None, _) => (Mode::Inspect, DType::F32),
            (_, None) => (Mode::InPlace, input),
            (_, Some(product)) => (Mode::Write, product.tensor.dtype),
        };
        let form = Form {
            mode,
            units: limits.units,
            plane: limits.plane,
            padded: item[0].run.padding.is_some(),
        };
        let all = |of: usize| batch.args(launch, of);
        // SAFETY: runs of tensors and products are exact, and the table says how long they are; units beyond neither
        // read nor write. Nobody else holds what is overwritten (`may_overwrite`).
        // `partials` has a row wherever the table says.
        unsafe {
            pass::measure::launch_unchecked(
                &partials.client,
                cubes(launch.cubes),
                CubeDim::new_1d(form.units),
                launch.vector,
                all(0).collect(),
                (1..item.len()).flat_map(all).collect(),
                args(factor.clone()),
                arg(&partials),
                batch.table(),
                launch.from,
                launch.shift,
                // From here on, in bits, magnitudes are looked at twice.
                edge.to_bits().min(BIG),
                form,
                [input, output].map(dtype_to_storage_type),
            );
        }
    }
    let status = finish(&batch, &partials);
    let (items, made) = (batch.items.into_iter(), factor.is_some());
    let products = items.filter_map(|mut item| item.pop().filter(|_| made));
    products.map(|laid| laid.tensor).chain([status]).collect()
}

/// The status, of what all launches have found.
fn finish(batch: &Batch, partials: &CubeTensor) -> CubeTensor {
    let (client, count) = (&partials.client, batch.items.len());
    let dim = units(client, finish::UNITS);
    let units = match batch.plan().most_rows <= finish::FEW {
        true => 1,
        false => dim,
    };
    let each = (dim / units) as usize;
    let status = floats(partials, [count * FIELDS]);
    for first in (0..count).step_by(MAX_COUNT * each) {
        // SAFETY: the table says which rows of `partials` a tensor has, and all were written; `status` has `FIELDS`
        // floats for each tensor; every tensor has its units, and units beyond end at once.
        unsafe {
            finish::finish_status::launch_unchecked(
                client,
                cubes((count - first).div_ceil(each).min(MAX_COUNT)),
                CubeDim::new_1d(dim),
                arg(partials),
                arg(&status),
                batch.table(),
                batch.plan().last,
                first as u32,
                units,
            );
        }
    }
    status
}

/// The state of a loss scale after a step.
pub(super) fn advance(both: [CubeTensor; 2], border: Vec<CubeTensor>, largest: f32) -> CubeTensor {
    let next = floats(&both[0], [WORDS]);
    let units = units(&next.client, schedule::UNITS);
    let [state, rows] = both.map(CubeTensor::into_buffer_arg);
    // SAFETY: both states have `WORDS` words; of the rows, whole ones are read.
    unsafe {
        schedule::advance::launch_unchecked(
            &next.client,
            cubes(1),
            CubeDim::new_1d(units),
            state,
            rows,
            args(border),
            arg(&next),
            largest,
            units,
        );
    }
    next
}

/// The factors by which gradients are clipped.
pub(super) fn clip([table, rows]: [CubeTensor; 2]) -> CubeTensor {
    let gradients = rows.meta.num_elements() / FIELDS;
    let groups = clip::groups(table.meta.num_elements(), gradients);
    let factors = floats(&rows, [gradients]);
    let units = units(&rows.client, schedule::UNITS);
    let count = groups.max(gradients.div_ceil(units as usize));
    // SAFETY: the table says where each group's members are, and each of these has a row and a factor.
    unsafe {
        schedule::factors::launch_unchecked(
            &rows.client,
            cubes(count.min(MAX_COUNT)),
            CubeDim::new_1d(units),
            arg(&table),
            arg(&rows),
            arg(&factors),
            units,
        );
    }
    factors
}

/// Rows of an update, decided by the state of a loss scale.
pub(super) fn decide(
    both: [CubeTensor; 2],
    factors: Option<CubeTensor>,
    rule: UpdateRule,
) -> CubeTensor {
    let parameters = both[0].meta.num_elements() / step::UNDECIDED;
    let rows = floats(&both[1], [parameters, step::ROW]);
    let units = units(&rows.client, finish::UNITS);
    let [undecided, state] = both.map(CubeTensor::into_buffer_arg);
    // SAFETY: there are a row, a time and a gradient for each parameter; units beyond neither read nor write. The state has `WORDS` words.
    // There is a factor for each gradient.
    unsafe {
        schedule::decide::launch_unchecked(
            &rows.client,
            cubes(parameters.div_ceil(units as usize)),
            CubeDim::new_1d(units),
            undecided,
            state,
            args(factors),
            arg(&rows),
            rule,
        );
    }
    rows
}

/// Counts by exponent: one row for each cube, and the sum of the rows.
pub(super) fn histogram(tensors: Vec<CubeTensor>) -> CubeTensor {
    let limits = Limits::of(&tensors[0].client);
    let items = tensors.into_iter().map(|tensor| vec![Laid::dense(tensor)]);
    let batch = Batch::new(items.collect(), &limits, true, 0);
    let units = units(&batch.like().client, histogram::UNITS);
    let bins = histogram::BINS as usize;
    let launches = &batch.plan().launches;
    let count: usize = launches.iter().map(|launch| launch.cubes).sum();
    let rows = floats(batch.like(), [count.max(1) * bins]);
    let mut row = 0;
    for launch in launches {
        // SAFETY: runs of tensors are exact, and the table says how long they are; units beyond read nothing. There is
        // a row for each cube.
        unsafe {
            histogram::histogram_many::launch_unchecked(
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
                dtype_to_storage_type(batch.item(launch)[0].tensor.dtype),
            );
        }
        row += launch.cubes as u32;
    }
    let sums = floats(&rows, [2 * bins]);
    // SAFETY: there are `row` rows, all written; `sums` has two floats for each bin, and each bin has a cube.
    unsafe {
        histogram::finish_histogram::launch_unchecked(
            &rows.client,
            cubes(bins),
            CubeDim::new_1d(units),
            arg(&rows),
            arg(&sums),
            row,
            units,
        );
    }
    sums
}

/// As [`Job::Update`](crate::Job::Update).
pub(super) fn update(
    limits: &Limits,
    parameters: Vec<Vec<CubeTensor>>,
    rows: CubeTensor,
    rule: UpdateRule,
) -> Vec<CubeTensor> {
    if parameters.is_empty() {
        return Vec::new();
    }
    let limits = Limits {
        // Where other passes have partial results, there is room for one more.
        buffers: limits.buffers + 1,
        units: units(&rows.client, update::UNITS),
        ..*limits
    };
    let mut owner = Owner::default();
    let items = (parameters.into_iter()).map(|own| own_item(own, &mut owner));
    let batch = Batch::new(items.collect(), &limits, false, 0);
    let rows = match rows.meta.strides()[1] {
        1 => rows,
        _ => contiguous(rows, None),
    };
    for launch in &batch.plan().launches {
        launch_step(&batch, launch, &rows, rule, limits.units);
    }
    let written = (batch.items.into_iter()).flat_map(|item| item.into_iter().skip(1));
    written.map(|laid| laid.tensor).collect()
}

/// Launches the step of some parameters.
fn launch_step(batch: &Batch, launch: &Launch, rows: &CubeTensor, rule: UpdateRule, most: u32) {
    let all = |of: usize| batch.args(launch, of);
    let first = batch.item(launch);
    let dtypes = [0, 1].map(|of: usize| first[of].tensor.dtype);
    // In f32, the parameter is the first of what is kept in f32.
    let wide = 1 + usize::from(step::has_master(dtypes[1]));
    let units = update::units(launch.slots * first.len()).min(most);
    // SAFETY: all of a parameter's runs are of one length, which the table has; units beyond neither read nor write.
    // Nobody else holds what is overwritten (`contiguous`). There is a row for each parameter.
    unsafe {
        update::update_many::launch_unchecked(
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
            dtypes.map(dtype_to_storage_type),
        );
    }
}

/// Gradient, parameter, master if there is one, and states: in vectors of 16 bytes of f32, or of what divides all of them.
fn own_item(own: Vec<CubeTensor>, owner: &mut Owner) -> Item {
    let laid = |(at, tensor)| Laid::dense(contiguous(tensor, (at > 0).then_some(&mut *owner)));
    let mut item: Item = own.into_iter().enumerate().map(laid).collect();
    let vectors = item.iter().map(|laid| laid.run.vector);
    let vector = vectors.min().unwrap_or(1);
    item.iter_mut().for_each(|laid| laid.run.vector = vector);
    item
}

/// The tensor itself, or a copy of it if its values do not lie in the order of its dimensions, or if it will be written and its
/// `owner` says no.
///
/// A copy of what is held takes another launch, and the memory that a new tensor would take.
fn contiguous(tensor: CubeTensor, owner: Option<&mut Owner>) -> CubeTensor {
    let empty = tensor.meta.num_elements() == 0;
    let stays = || owner.is_none_or(|owner| owner.may_overwrite(&tensor));
    if empty || tensor.is_contiguous() && stays() {
        return tensor;
    }
    let (client, device, dtype) = (tensor.client.clone(), tensor.device.clone(), tensor.dtype);
    let copy = copied(&client, tensor.binding(), dtype_to_storage_type(dtype));
    CubeTensor::new(client, copy.handle, *copy.metadata, device, dtype)
}

/// Vectors that a unit reads, where there are cubes enough.
const VECTORS_PER_UNIT: usize = 4;

/// Of f16, bf16 or f32 to any of them; `scale` has one value, of f32.
pub(super) fn mul_cast(tensor: CubeTensor, dtype: FloatDType, by: Scale<CubeTensor>) -> CubeTensor {
    // Burn's multiplication of f32 is one launch too, and in place where it may be.
    if (tensor.dtype, dtype) == (DType::F32, FloatDType::F32) {
        return compose::mul_cast::<CubeBackend>(tensor, dtype, by);
    }
    let source = Laid::dense(tensor);
    let product = source.product(dtype.into());
    weigh(&source, None, Some(&product), by, (0.0, None));
    product.tensor
}

/// The sum of f32 `target` and f16, bf16 or f32 `source`, weighted; the target where `found_inf` is above 0.
pub(super) fn blend(
    [target, source]: [CubeTensor; 2],
    ([keep, add], found_inf): Weights<CubeTensor>,
) -> CubeTensor {
    if target.meta.num_elements() == 0 {
        return target;
    }
    let both = [target, source].map(|tensor| Laid::dense(into_contiguous(tensor)));
    let [mut target, mut source] = both;
    let vector = target.run.vector.min(source.run.vector);
    (target.run.vector, source.run.vector) = (vector, vector);
    let sum = (!Owner::default().may_overwrite(&target.tensor)).then(|| target.product(DType::F32));
    let kept = (keep, found_inf);
    weigh(&source, Some(&target), sum.as_ref(), (add, None), kept);
    sum.unwrap_or(target).tensor
}

/// Launches the kernel of this name: what the source is multiplied by, and how much of the target is kept, unless its tensor says all. All lie in
/// one order and have vectors of one width; without an output, nobody else holds the target.
fn weigh(
    source: &Laid,
    target: Option<&Laid>,
    output: Option<&Laid>,
    (add, scale): Scale<CubeTensor>,
    (keep, found_inf): Scale<CubeTensor>,
) {
    let client = &source.tensor.client;
    let limits = Limits::of(client);
    let vectors = source.run.span / source.run.vector;
    let count = vectors.div_ceil(limits.units as usize * VECTORS_PER_UNIT);
    let made = output.or(target).expect("an output, or a target");
    let whole = |laid: &Laid| laid.part(0, laid.run.span);
    // The target's place among the buffers.
    let in_place = || BufferArg::alias(1, vectors);
    // SAFETY: all are of one length, beyond which units do nothing; nobody else holds what is overwritten.
    unsafe {
        elementwise::weigh::launch_unchecked(
            client,
            cubes(count.clamp(1, limits.cubes())),
            CubeDim::new_1d(limits.units),
            source.run.vector,
            whole(source),
            target.map(whole).into_iter().collect(),
            output.map_or_else(in_place, whole),
            keep as f32,
            add as f32,
            args(scale),
            args(found_inf),
            [source, made].map(|laid| dtype_to_storage_type(laid.tensor.dtype)),
        );
    }
}
