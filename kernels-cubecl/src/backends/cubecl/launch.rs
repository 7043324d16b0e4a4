//! The launches of a plan.

use burn::tensor::DType;
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use burn_std::id::StreamId;
use cubecl::{client::Client, prelude::*, server::Handle};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::{
    memory::{Laid, may_overwrite},
    plan::{Extent, Launch, Limits, Part, Plan, units},
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

/// A tensor, and what is done with it.
struct Item {
    laid: Laid,
    mode: Mode,
    /// What is measured: of the product, if there is one.
    output: DType,
    /// Where it is not written in place.
    product: Option<Laid>,
}

impl Item {
    fn new(tensor: CubeTensor, scale: Option<&Scale>) -> Self {
        let laid = Laid::padded(tensor);
        let dtype = laid.tensor.dtype;
        let output = match scale {
            Some(scale) if scale.keep_dtype => dtype,
            _ => DType::F32,
        };
        let mode = match scale {
            None => Mode::Inspect,
            Some(_) if dtype == output && may_overwrite(&laid.tensor) => Mode::InPlace,
            Some(_) => Mode::Write,
        };
        let product = (mode == Mode::Write).then(|| laid.product(output));
        Self {
            laid,
            mode,
            output,
            product,
        }
    }

    /// Tensors share a launch that have one mode, dtypes and width of vectors, and are all padded or none.
    fn extent(&self) -> Extent<impl Ord + Copy + use<>> {
        let (laid, output) = (&self.laid, self.output.name());
        let padded = laid.padding.is_some();
        let kind = (
            self.mode,
            laid.tensor.dtype.name(),
            output,
            laid.vector,
            padded,
        );
        laid.extent(kind, 1 + usize::from(self.product.is_some()))
    }
}

/// Measures tensors, after scaling if there is one. Returns the products, if there are any, and the status.
pub(super) fn pass(
    tensors: Vec<CubeTensor>,
    scale: Option<Scale>,
    edge: f32,
    limits: &Limits,
) -> Vec<CubeTensor> {
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let items: Vec<Item> = (tensors.into_iter())
        .map(|tensor| Item::new(tensor, scale.as_ref()))
        .collect();
    let extents: Vec<_> = items.iter().map(Item::extent).collect();
    let planes = kernel::rows(limits.units, limits.plane);
    let plan = Plan::new(&extents, limits, planes as usize, edge.to_bits());
    let pass = Pass {
        partials: buffer(&client, plan.rows.max(1) * ROW),
        table: table(&client, &device, &plan),
        client,
        items,
        scale,
        edge: edge.to_bits(),
        limits,
    };
    for launch in &plan.launches {
        let item = &pass.items[launch.parts[0].tensor];
        with_float!(item.laid.tensor.dtype, I => match (item.mode, item.output) {
            (Mode::Inspect, _) => pass.launch::<Inspect, I, f32>(launch),
            (Mode::InPlace, _) => pass.launch::<InPlace, I, I>(launch),
            (Mode::Write, DType::F32) => pass.launch::<Write, I, f32>(launch),
            (Mode::Write, _) => pass.launch::<Write, I, I>(launch),
        });
    }
    let status = floats(&pass.client, device, pass.finish(&plan));
    let products = (pass.items.into_iter())
        .filter(|item| item.mode != Mode::Inspect)
        .map(|item| item.product.unwrap_or(item.laid).tensor);
    products.chain([status]).collect()
}

/// A buffer, and how many words it has.
pub(super) type Words = (Handle, usize);

fn buffer(client: &Client, words: usize) -> Words {
    (client.empty(words * size_of::<u32>()), words)
}

/// A plan's table on the device: from step to step the same, so it is sent once.
pub(super) fn table(client: &Client, device: &CubeDevice, plan: &Plan) -> Words {
    type Sent = (CubeDevice, StreamId, Vec<u32>, Handle);
    /// Those that were used last, the latest at the end.
    static SENT: Mutex<VecDeque<Sent>> = Mutex::new(VecDeque::new());
    /// The passes of a few models, or of one in a few ways.
    const MAX_SENT: usize = 32;

    let stream = StreamId::current();
    let mut sent = SENT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |sent: &Sent| sent.0 == *device && sent.1 == stream && sent.2 == plan.table;
    let found = sent.iter().position(is_it).and_then(|at| sent.remove(at));
    let found = found.unwrap_or_else(|| {
        let words = plan.table.iter();
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let handle = client.create_from_slice(&bytes);
        (device.clone(), stream, plan.table.clone(), handle)
    });
    let handle = found.3.clone();
    sent.push_back(found);
    if sent.len() > MAX_SENT {
        sent.pop_front();
    }
    (handle, plan.table.len())
}

pub(super) fn arg((handle, words): &Words) -> BufferArg {
    // SAFETY: the length is that of the buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), *words) }
}

pub(super) fn args<A: FromIterator<BufferArg>>(tensors: impl IntoIterator<Item = CubeTensor>) -> A {
    let tensors = tensors.into_iter();
    tensors.map(CubeTensor::into_buffer_arg).collect()
}

fn floats(client: &Client, device: CubeDevice, (handle, words): Words) -> CubeTensor {
    CubeTensor::new_contiguous(client.clone(), device, [words].into(), handle, DType::F32)
}

/// As many bindings as a kernel is compiled for; those that no tensor needs are small buffers of their own.
pub(super) fn slots<'a>(
    client: &'a Client,
    launch: &'a Launch,
    laid: impl Fn(&Part) -> &'a Laid,
) -> impl Iterator<Item = BufferArg> {
    let parts = launch.parts.iter();
    let args = parts.map(move |part| laid(part).part(part.first, part.values));
    let spares = (launch.parts.len()..launch.slots).map(|_| arg(&buffer(client, 64)));
    args.chain(spares)
}

struct Pass<'a> {
    client: Client,
    items: Vec<Item>,
    scale: Option<Scale>,
    edge: u32,
    limits: &'a Limits,
    partials: Words,
    table: Words,
}

impl Pass<'_> {
    fn launch<W: Work, I: Float + CubeElement, O: Float + CubeElement>(&self, launch: &Launch) {
        let laid = &self.items[launch.parts[0].tensor].laid;
        let (units, plane) = (self.limits.units, self.limits.plane);
        let form = Form::new::<W, I>(units, plane, laid.vector, laid.padding.is_some());
        let tensors = slots(&self.client, launch, |part| &self.items[part.tensor].laid);
        let product = |part: &Part| {
            let product = &self.items[part.tensor].product;
            product.as_ref().expect("a product for each tensor")
        };
        let products = match W::MODE {
            Mode::Write => slots(&self.client, launch, product).collect(),
            _ => SequenceArg::new(),
        };
        let factor = self.scale.iter().map(|scale| scale.inverse.clone());
        // SAFETY: runs of tensors and products are exact, and the table says how long they are; units beyond neither
        // read nor write. Nobody else holds what is overwritten (`may_overwrite`).
        // `partials` has a row wherever the table says.
        unsafe {
            kernel::measure::launch_unchecked::<W, I, O>(
                &self.client,
                CubeCount::Static(launch.cubes as u32, 1, 1),
                CubeDim::new_1d(form.units),
                launch.vector,
                tensors.collect(),
                products,
                args(factor),
                arg(&self.partials),
                arg(&self.table),
                launch.from,
                launch.shift,
                self.edge.min(BIG),
                form,
            );
        }
    }

    /// The status, of what all launches have found.
    fn finish(&self, plan: &Plan) -> Words {
        let (client, count) = (&self.client, self.items.len());
        let units = units(client, kernel::FINISH_UNITS);
        let status = buffer(client, count * FIELDS);
        for first in (0..count).step_by(MAX_COUNT) {
            let cubes = (count - first).min(MAX_COUNT);
            // SAFETY: the table says which rows of `partials` a tensor has, and all were written; `status` has `FIELDS`
            // floats for each tensor; every tensor has a cube.
            unsafe {
                kernel::finish_status::launch_unchecked(
                    client,
                    CubeCount::Static(cubes as u32, 1, 1),
                    CubeDim::new_1d(units),
                    arg(&self.partials),
                    arg(&status),
                    arg(&self.table),
                    plan.last,
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
    crossing: Option<CubeTensor>,
) -> CubeTensor {
    let (client, device) = (state.client.clone(), state.device.clone());
    let next = buffer(&client, WORDS);
    // SAFETY: both states have `WORDS` words; of the rows, whole ones are read.
    unsafe {
        kernel::advance::launch_unchecked(
            &client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(1),
            state.into_buffer_arg(),
            rows.into_buffer_arg(),
            args(crossing),
            arg(&next),
        );
    }
    floats(&client, device, next)
}

/// Rows of an update, decided by the state of a loss scale.
pub(super) fn decide(
    undecided: CubeTensor,
    state: CubeTensor,
    clip: Vec<CubeTensor>,
    rule: UpdateRule,
) -> CubeTensor {
    let (client, device) = (state.client.clone(), state.device.clone());
    let parameters = undecided.meta.num_elements() / update_row::UNDECIDED;
    let (rows, units) = (
        buffer(&client, parameters * update_row::ROW),
        units(&client, kernel::FINISH_UNITS),
    );
    let cubes = parameters.div_ceil(units as usize);
    // SAFETY: there are a row, a time and a gradient for each parameter; units beyond neither read nor write. The state has `WORDS` words.
    // Table and status have an entry for each gradient.
    unsafe {
        kernel::decide::launch_unchecked(
            &client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(units),
            undecided.into_buffer_arg(),
            state.into_buffer_arg(),
            args(clip),
            arg(&rows),
            rule,
        );
    }
    let shape = [parameters, update_row::ROW].into();
    CubeTensor::new_contiguous(client, device, shape, rows.0, DType::F32)
}

/// Counts by exponent: one row for each cube, and the sum of the rows.
pub(super) fn histogram(tensors: Vec<CubeTensor>, limits: &Limits) -> CubeTensor {
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let items: Vec<Laid> = tensors.into_iter().map(Laid::dense).collect();
    let extent = |laid: &Laid| laid.extent((laid.tensor.dtype.name(), laid.vector), 1);
    let extents: Vec<_> = items.iter().map(extent).collect();
    let plan = Plan::new(&extents, limits, 1, 0);
    let units = units(&client, kernel::HISTOGRAM_UNITS);
    let cubes: usize = plan.launches.iter().map(|launch| launch.cubes).sum();
    let rows = buffer(&client, cubes.max(1) * kernel::BINS as usize);
    let table = table(&client, &device, &plan);
    let mut row = 0;
    for launch in &plan.launches {
        let dtype = items[launch.parts[0].tensor].tensor.dtype;
        // SAFETY: runs of tensors are exact, and the table says how long they are; units beyond read nothing. There is
        // a row for each cube.
        with_float!(dtype, I => unsafe {
            kernel::histogram_many::launch_unchecked::<I>(
                &client,
                CubeCount::Static(launch.cubes as u32, 1, 1),
                CubeDim::new_1d(units),
                launch.vector,
                slots(&client, launch, |part| &items[part.tensor]).collect(),
                arg(&table),
                launch.from,
                launch.shift,
                arg(&rows),
                row,
                units,
            )
        });
        row += launch.cubes as u32;
    }
    let sums = summed(&client, &rows, row, units);
    floats(&client, device, sums)
}

/// The sums of so many rows of counts.
fn summed(client: &Client, rows: &Words, count: u32, units: u32) -> Words {
    let sums = buffer(client, 2 * kernel::BINS as usize);
    // SAFETY: there are `count` rows, all written; `sums` has two floats for each bin, and each bin has a cube.
    unsafe {
        kernel::finish_histogram::launch_unchecked(
            client,
            CubeCount::Static(kernel::BINS, 1, 1),
            CubeDim::new_1d(units),
            arg(rows),
            arg(&sums),
            count,
            units,
        );
    }
    sums
}
