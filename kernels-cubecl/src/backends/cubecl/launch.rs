//! The launches of a plan.

use burn::tensor::{DType, bf16, f16};
use burn_cubecl::tensor::CubeTensor;
use cubecl::{client::Client, prelude::*, server::Handle};

use super::{
    elementwise::product_of,
    memory::{Laid, may_overwrite},
    plan::{Extent, Launch, Limits, Plan, units},
};
use crate::{
    kernel::{self, BIG, Form, InPlace, Inspect, Job, ROW, Work, Write},
    words::WORDS,
};

/// Cubes that a launch has in one dimension: what WebGPU grants.
const MAX_COUNT: usize = 65_535;

/// What a pass multiplies by, and whether products keep their tensors' dtypes.
pub(super) struct Scale {
    pub(super) inverse: CubeTensor,
    pub(super) keep_dtype: bool,
}

/// A kind of launch: its job, the names of the dtypes it reads and writes, the width of vectors, whether rows are padded.
type Kind = (Job, &'static str, &'static str, usize, bool);

struct Item {
    laid: Laid,
    job: Job,
    output: DType,
}

impl Item {
    fn new(tensor: CubeTensor, scale: Option<&Scale>) -> Self {
        let laid = Laid::padded(tensor);
        let dtype = laid.tensor.dtype;
        let (job, output) = match scale {
            None => (Job::Inspect, DType::F32),
            Some(scale) => {
                let output = if scale.keep_dtype { dtype } else { DType::F32 };
                match dtype == output && may_overwrite(&laid.tensor) {
                    true => (Job::InPlace, output),
                    false => (Job::Write, output),
                }
            }
        };
        Self { laid, job, output }
    }

    fn extent(&self, own: bool) -> Extent<Kind> {
        let (laid, job) = (&self.laid, self.job);
        let (dtype, padded) = (laid.tensor.dtype.name(), laid.padding.is_some());
        Extent {
            kind: (job, dtype, self.output.name(), laid.vector, padded),
            span: laid.span,
            vector: laid.vector,
            padding: laid.padding,
            buffer: laid.buffer_len(),
            size: match job == Job::Write && !own {
                true => self.output.size(),
                false => 0,
            },
        }
    }
}

/// Measures tensors, after scaling if there is one. Returns the products, if there are any, and the status words.
pub(super) fn pass(
    tensors: Vec<CubeTensor>,
    scale: Option<Scale>,
    edge: f32,
    limits: &Limits,
) -> (Vec<CubeTensor>, CubeTensor) {
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let items = tensors
        .into_iter()
        .map(|tensor| Item::new(tensor, scale.as_ref()));
    let items: Vec<Item> = items.collect();
    let extents: Vec<_> = items.iter().map(|item| item.extent(limits.own)).collect();
    let form = Form {
        units: limits.units,
        plane: limits.plane,
        loads: 4,
        padded: false,
    };
    let plan = Plan::new(&extents, limits, form.rows() as usize, edge.to_bits());
    let count = items.len();
    let mut pass = Pass {
        partials: buffer(&client, plan.rows.max(1) * ROW),
        table: table(&client, &plan),
        products: (0..count).map(|_| None).collect(),
        client,
        items,
        scale,
        edge: edge.to_bits(),
        form,
    };
    for launch in &plan.launches {
        pass.launch(launch, limits.own);
    }

    let (client, units) = (&pass.client, units(&pass.client, kernel::FINISH_UNITS));
    let status = buffer(client, count * WORDS);
    for from in (0..count).step_by(MAX_COUNT) {
        let cubes = (count - from).min(MAX_COUNT);
        // SAFETY: the table says which rows of `partials` a tensor has, and all were written; `status` has `WORDS`
        // words for each tensor; every tensor has a cube.
        unsafe {
            kernel::finish_status::launch_unchecked(
                client,
                CubeCount::Static(cubes as u32, 1, 1),
                CubeDim::new_1d(units),
                arg(&pass.partials),
                arg(&status),
                view(&pass.table, plan.last),
                from as u32,
                units,
            );
        }
    }
    let status = CubeTensor::new_contiguous(
        client.clone(),
        device,
        [count * WORDS].into(),
        status.0,
        DType::I32,
    );
    let is_unscaled = pass.scale.is_some();
    let products = (pass.items.into_iter().zip(pass.products))
        .map(|(item, product)| {
            // What is in no launch has no values.
            product.unwrap_or(CubeTensor {
                dtype: item.output,
                ..item.laid.tensor
            })
        })
        .filter(|_| is_unscaled);
    (products.collect(), status)
}

/// A buffer, and how many words it has.
type Words = (Handle, usize);

fn buffer(client: &Client, words: usize) -> Words {
    (client.empty(words * size_of::<u32>()), words)
}

fn table(client: &Client, plan: &Plan) -> Words {
    let bytes: Vec<u8> = plan
        .table
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    (client.create_from_slice(&bytes), plan.table.len())
}

fn arg((handle, words): &Words) -> BufferArg {
    // SAFETY: the length is that of the buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), *words) }
}

/// A buffer from one of its words on.
fn view((handle, words): &Words, from: usize) -> BufferArg {
    let handle = handle
        .clone()
        .offset_start((from * size_of::<u32>()) as u64);
    // SAFETY: the length is that of the rest.
    unsafe { BufferArg::from_raw_parts(handle, words - from) }
}

/// As many bindings as a kernel is compiled for; those that no tensor needs are small buffers of their own.
fn slots<T: LaunchArg<RuntimeArg = BufferArg>>(
    client: &Client,
    launch: &Launch,
    args: impl Iterator<Item = BufferArg>,
) -> SequenceArg<T> {
    let spare = || arg(&buffer(client, 64));
    let spares = (launch.parts.len()..launch.slots).map(|_| spare());
    args.chain(spares).collect()
}

struct Pass {
    client: Client,
    items: Vec<Item>,
    scale: Option<Scale>,
    edge: u32,
    form: Form,
    partials: Words,
    table: Words,
    products: Vec<Option<CubeTensor>>,
}

impl Pass {
    fn launch(&mut self, launch: &Launch, own: bool) {
        let item = &self.items[launch.parts[0].tensor];
        let job = item.job;
        let form = Form {
            loads: kernel::loads(job, item.laid.tensor.dtype, item.laid.vector),
            padded: item.laid.padding.is_some(),
            ..self.form
        };
        let shared = match job == Job::Write {
            true => self.reserve(launch, own),
            false => None,
        };
        match job {
            Job::Inspect => self.typed::<Inspect>(launch, form, shared),
            Job::Write => self.typed::<Write>(launch, form, shared),
            Job::InPlace => self.typed::<InPlace>(launch, form, shared),
        }
    }

    fn typed<W: Work>(&self, launch: &Launch, form: Form, shared: Option<Handle>) {
        let item = &self.items[launch.parts[0].tensor];
        match (item.laid.tensor.dtype, item.output) {
            (DType::F16, DType::F16) => self.run::<W, f16, f16>(launch, form, shared),
            (DType::F16, _) => self.run::<W, f16, f32>(launch, form, shared),
            (DType::BF16, DType::BF16) => self.run::<W, bf16, bf16>(launch, form, shared),
            (DType::BF16, _) => self.run::<W, bf16, f32>(launch, form, shared),
            _ => self.run::<W, f32, f32>(launch, form, shared),
        }
    }

    /// Makes the products of a launch. Returns the buffer that they share, if they do.
    fn reserve(&mut self, launch: &Launch, own: bool) -> Option<Handle> {
        let shared = (!own && launch.parts.len() > 1).then(|| self.client.empty(launch.bytes));
        for part in &launch.parts {
            let (item, product) = (&self.items[part.tensor], &mut self.products[part.tensor]);
            // Of a tensor in parts, the first makes it.
            let new = || product_of(&item.laid, item.output);
            let made = product.get_or_insert_with(new);
            if let Some(buffer) = &shared {
                let end = part.offset + item.laid.buffer_len() * item.output.size();
                made.handle = (buffer.clone().offset_start(part.offset as u64))
                    .offset_end((launch.bytes - end) as u64);
            }
        }
        shared
    }

    fn run<W: Work, I: Float + CubeElement, O: Float + CubeElement>(
        &self,
        launch: &Launch,
        form: Form,
        shared: Option<Handle>,
    ) {
        let vector = self.items[launch.parts[0].tensor].laid.vector;
        let part =
            |part: &super::plan::Part| self.items[part.tensor].laid.part(part.first, part.values);
        let product = |part: &super::plan::Part| {
            let product = self.products[part.tensor]
                .as_ref()
                .expect("it was reserved");
            let whole = product.handle.size_in_used();
            let (first, end) = (part.first, part.first + part.values);
            let handle = product
                .handle
                .clone()
                .offset_start((first * size_of::<O>()) as u64);
            let handle = handle.offset_end(whole - (end * size_of::<O>()) as u64);
            // SAFETY: a part of the product, as long as that of the tensor.
            unsafe { BufferArg::from_raw_parts(handle, part.values / vector) }
        };
        let tensors = slots(&self.client, launch, launch.parts.iter().map(part));
        let products = match (W::JOB, shared) {
            (Job::Write, None) => slots(&self.client, launch, launch.parts.iter().map(product)),
            (Job::Write, Some(buffer)) => {
                let vectors = launch.bytes / size_of::<O>() / vector;
                // SAFETY: the length is that of the buffer.
                [unsafe { BufferArg::from_raw_parts(buffer, vectors) }].into()
            }
            _ => SequenceArg::new(),
        };
        let scale = self.scale.iter();
        let factor = scale.map(|scale| scale.inverse.clone().into_buffer_arg());
        // SAFETY: runs of tensors and products are exact, and the table says how long they are; units beyond neither
        // read nor write. Products do not overlap. Nobody else holds what is overwritten (`may_overwrite`).
        // `partials` has a row wherever the table says.
        unsafe {
            kernel::measure::launch_unchecked::<W, I, O>(
                &self.client,
                CubeCount::Static(launch.cubes as u32, 1, 1),
                CubeDim::new_1d(form.units),
                vector,
                tensors,
                products,
                factor.collect(),
                arg(&self.partials),
                view(&self.table, launch.from),
                launch.shift,
                self.edge.min(BIG),
                form,
            );
        }
    }
}

/// 1 or 0 for what is not finite, and the norm, of status words.
pub(super) fn verdict(words: CubeTensor) -> CubeTensor {
    let client = words.client.clone();
    let output = client.empty(2 * size_of::<f32>());
    let count = words.meta.num_elements();
    let units = units(&client, kernel::FINISH_UNITS);
    // SAFETY: `words` has `WORDS` words for each tensor, and `output` two values.
    unsafe {
        kernel::verdict::launch_unchecked(
            &client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(units),
            BufferArg::from_raw_parts(words.handle.clone(), count),
            BufferArg::from_raw_parts(output.clone(), 2),
            (count / WORDS) as u32,
            units,
        );
    }
    CubeTensor::new_contiguous(client, words.device, [2].into(), output, DType::F32)
}

/// Counts by exponent: one row for each cube, and the sum of the rows.
pub(super) fn histogram(tensors: Vec<CubeTensor>, limits: &Limits) -> CubeTensor {
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let items: Vec<Laid> = tensors.into_iter().map(Laid::dense).collect();
    let extents = items.iter().map(|laid| Extent {
        kind: (laid.tensor.dtype.name(), laid.vector),
        span: laid.span,
        vector: laid.vector,
        padding: None,
        buffer: 0,
        size: 0,
    });
    let plan = Plan::new(&extents.collect::<Vec<_>>(), limits, 1, 0);
    let units = units(&client, kernel::HISTOGRAM_UNITS);
    let bins = kernel::BINS as usize;
    let count: usize = plan.launches.iter().map(|launch| launch.cubes).sum();
    let counts = Counts {
        rows: buffer(&client, count.max(1) * bins),
        table: table(&client, &plan),
        client: &client,
        items: &items,
        units,
    };
    let mut row = 0;
    for launch in &plan.launches {
        match items[launch.parts[0].tensor].tensor.dtype {
            DType::F16 => counts.launch::<f16>(launch, row),
            DType::BF16 => counts.launch::<bf16>(launch, row),
            _ => counts.launch::<f32>(launch, row),
        }
        row += launch.cubes as u32;
    }
    let sums = buffer(&client, 2 * bins);
    // SAFETY: `rows` holds `count` rows, all written; `sums` two words for each bin, and each bin has a cube.
    unsafe {
        kernel::finish_histogram::launch_unchecked(
            &client,
            CubeCount::Static(kernel::BINS, 1, 1),
            CubeDim::new_1d(units),
            arg(&counts.rows),
            arg(&sums),
            row,
            units,
        );
    }
    CubeTensor::new_contiguous(client, device, [2 * bins].into(), sums.0, DType::I32)
}

struct Counts<'a> {
    client: &'a Client,
    items: &'a [Laid],
    units: u32,
    rows: Words,
    table: Words,
}

impl Counts<'_> {
    fn launch<I: Float + CubeElement>(&self, launch: &Launch, row: u32) {
        let parts = launch.parts.iter();
        let args = parts.map(|part| self.items[part.tensor].part(part.first, part.values));
        // SAFETY: runs of tensors are exact, and the table says how long they are; units beyond read nothing. There is
        // a row for each cube.
        unsafe {
            kernel::histogram_many::launch_unchecked::<I>(
                self.client,
                CubeCount::Static(launch.cubes as u32, 1, 1),
                CubeDim::new_1d(self.units),
                self.items[launch.parts[0].tensor].vector,
                slots(self.client, launch, args),
                view(&self.table, launch.from),
                launch.shift,
                arg(&self.rows),
                row,
                self.units,
            );
        }
    }
}
