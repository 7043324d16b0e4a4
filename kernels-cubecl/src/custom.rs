//! Jobs as Burn's custom operations, for all backends that note operations and run them later or elsewhere.

use burn::{
    backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr},
    tensor::{DType, Element, FloatDType, Shape},
};

use crate::{
    histogram::BINS,
    ops::{AmpOps, Job, TensorVec, cast},
    rows::FIELDS,
    update_row::{ROW, UNDECIDED, UpdateRule},
};

/// How a job is noted: its name, the shapes and dtypes of what it gives, and its numbers, which are read to note it and written to do it.
type Row<'a> = (&'static str, Vec<Output>, Vec<&'a mut dyn Number>);

type Output = (Shape, DType);

fn like(tensor: &TensorIr) -> Output {
    (tensor.shape.clone(), tensor.dtype)
}

impl Job {
    /// The table of all jobs. Without inputs, a row's outputs mean nothing.
    fn row(&mut self, inputs: &[TensorIr]) -> Row<'_> {
        let flat = |length: usize| vec![(Shape::from([length]), DType::F32)];
        let of_first = |output: &dyn Fn(&TensorIr) -> Output| {
            let first = inputs.first();
            first.map(output).into_iter().collect()
        };
        match self {
            Self::Unscale { keep_dtype, edge } => {
                let outputs = products(inputs, *keep_dtype);
                ("amp::unscale", outputs, vec![keep_dtype, edge])
            }
            Self::Inspect { edge } => ("amp::inspect", flat(inputs.len() * FIELDS), vec![edge]),
            Self::Histogram => ("amp::histogram", flat(2 * BINS), vec![]),
            Self::Blend { keep, add } => ("amp::blend", of_first(&like), vec![keep, add]),
            Self::MulCast { dtype, factor } => {
                let product = |tensor: &TensorIr| (tensor.shape.clone(), (*dtype).into());
                ("amp::mul_cast", of_first(&product), vec![factor])
            }
            Self::Update { rule } => ("amp::update", updated(inputs, *rule), vec![rule]),
            Self::Advance => ("amp::advance", of_first(&like), vec![]),
            Self::Decide { rule } => {
                let parameters = |sent: &TensorIr| sent.shape.num_elements() / UNDECIDED;
                let rows = |sent: &TensorIr| (Shape::from([parameters(sent), ROW]), DType::F32);
                ("amp::decide", of_first(&rows), vec![rule])
            }
        }
    }

    /// One of each, with numbers that are still to be written. Where a job has a dtype, it is that of its first output.
    fn all(dtype: FloatDType) -> [Self; 8] {
        let (edge, [keep, add, factor]) = (0.0, [0.0; 3]);
        let (keep_dtype, rule) = (false, UpdateRule::of_number(0));
        [
            Self::Unscale { keep_dtype, edge },
            Self::Inspect { edge },
            Self::Histogram,
            Self::Blend { keep, add },
            Self::MulCast { dtype, factor },
            Self::Update { rule },
            Self::Advance,
            Self::Decide { rule },
        ]
    }

    /// The names of all jobs, for a registry.
    #[cfg(feature = "router")]
    pub(crate) fn names() -> [&'static str; 8] {
        Self::all(FloatDType::F32).map(|mut job| job.row(&[]).0)
    }

    fn of(desc: &CustomOpIr) -> Option<Self> {
        let mut jobs = Self::all(desc.outputs.first()?.dtype.into()).into_iter();
        let mut job = jobs.find(|job| { *job }.row(&[]).0 == desc.id)?;
        let numbers = job.row(&[]).2;
        let fit = numbers.len() == desc.scalars.len();
        (numbers.into_iter().zip(&desc.scalars)).for_each(|(number, noted)| number.set(*noted));
        fit.then_some(job)
    }
}

/// A number of a job.
trait Number {
    fn note(&self) -> ScalarIr;
    fn set(&mut self, noted: ScalarIr);
}

impl<E: Element> Number for E {
    fn note(&self) -> ScalarIr {
        ScalarIr::new(*self, &E::dtype())
    }

    fn set(&mut self, noted: ScalarIr) {
        *self = noted.elem();
    }
}

impl Number for UpdateRule {
    fn note(&self) -> ScalarIr {
        ScalarIr::UInt(self.number())
    }

    fn set(&mut self, noted: ScalarIr) {
        *self = Self::of_number(noted.elem());
    }
}

/// All tensors but the last, and a status.
fn products(inputs: &[TensorIr], keep_dtype: bool) -> Vec<Output> {
    let tensors = inputs.split_last().map_or(&[][..], |(_, tensors)| tensors);
    let product = |tensor: &TensorIr| match keep_dtype || tensor.dtype == DType::F64 {
        true => like(tensor),
        false => (tensor.shape.clone(), DType::F32),
    };
    let status = (Shape::from([tensors.len() * FIELDS]), DType::F32);
    tensors.iter().map(product).chain([status]).collect()
}

/// Of each parameter, all but the gradient.
fn updated(inputs: &[TensorIr], rule: UpdateRule) -> Vec<Output> {
    let mut tensors = inputs;
    let mut outputs = Vec::new();
    while let [_, parameter, ..] = tensors {
        let (own, rest) = tensors.split_at(rule.tensors(parameter.dtype));
        outputs.extend(own[1..].iter().map(like));
        tensors = rest;
    }
    outputs
}

/// Notes a job, with ids for its outputs that `new_id` gives.
pub(crate) fn note(mut job: Job, inputs: &[TensorIr], new_id: impl Fn() -> TensorId) -> CustomOpIr {
    let (name, outputs, numbers) = job.row(inputs);
    let output = |(shape, dtype)| TensorIr::uninit(new_id(), shape, dtype);
    let outputs: Vec<TensorIr> = outputs.into_iter().map(output).collect();
    let scalars = numbers.iter().map(|number| number.note()).collect();
    CustomOpIr::with_scalars(name, inputs, &outputs, scalars)
}

/// Does what was noted.
pub(crate) fn execute<B: BackendIr + AmpOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let job = Job::of(desc).unwrap_or_else(|| panic!("{desc:?} is not a job of burn-amp"));
    let inputs = (desc.inputs.iter()).map(|ir| handles.get_float_tensor::<B>(ir));
    let outputs = B::amp_run(TensorVec(inputs.collect()), job);
    for (ir, tensor) in desc.outputs.iter().zip(outputs.0) {
        // Flex has a status in f64.
        handles.register_float_tensor::<B>(&ir.id, cast::<B>(tensor, ir.dtype));
    }
}
