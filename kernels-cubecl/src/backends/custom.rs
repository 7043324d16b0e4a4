//! Jobs as Burn's custom operations, for all backends that queue operations and run them later or elsewhere.

use burn::backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr};
use burn::tensor::{DType, FloatDType, Shape};

use super::compose::cast;
use crate::ops::{AmpOps, Job, TensorVec, product_dtype};
use crate::step::{ROW, UNDECIDED};
use crate::{UpdateRule, histogram::BINS, status::FIELDS};

/// The name of an operation. With this version: a server of another one may mean something else, and does not know it.
macro_rules! name {
    ($job:literal) => {
        concat!("amp-", env!("CARGO_PKG_VERSION"), "::", $job)
    };
}

impl Job {
    /// How it is queued: its name and its numbers.
    pub(super) fn encoded(self) -> (&'static str, [f64; 2]) {
        match self {
            Self::Unscale { keep_dtype, edge } => {
                (name!("unscale"), [keep_dtype.into(), edge.into()])
            }
            Self::Inspect { edge } => (name!("inspect"), [0.0, edge.into()]),
            Self::Histogram => (name!("histogram"), [0.0; 2]),
            Self::Blend { keep, add } => (name!("blend"), [keep, add]),
            Self::MulCast { factor, .. } => (name!("mul_cast"), [factor, 0.0]),
            Self::Update { rule } => (name!("update"), [rule.number().into(), 0.0]),
            Self::Advance { largest } => (name!("advance"), [largest.into(), 0.0]),
            Self::Decide { rule } => (name!("decide"), [rule.number().into(), 0.0]),
        }
    }

    /// One of each, with these numbers. Where a job has a dtype, it is that of its first output.
    pub(super) fn all(dtype: FloatDType, [first, second]: [f64; 2]) -> [Self; 8] {
        let (keep_dtype, edge) = (first != 0.0, second as f32);
        let (keep, add, factor) = (first, second, first);
        let largest = first as f32;
        let rule = UpdateRule::of_number(first as u8);
        [
            Self::Unscale { keep_dtype, edge },
            Self::Inspect { edge },
            Self::Histogram,
            Self::Blend { keep, add },
            Self::MulCast { dtype, factor },
            Self::Update { rule },
            Self::Advance { largest },
            Self::Decide { rule },
        ]
    }

    fn of(desc: &CustomOpIr) -> Option<Self> {
        let mut numbers = desc.scalars.iter().map(|number| number.elem());
        let numbers = [numbers.next()?, numbers.next()?];
        let dtype = desc.outputs.first()?.dtype.into();
        let jobs = Self::all(dtype, numbers);
        jobs.into_iter().find(|job| job.encoded().0 == desc.id)
    }

    /// The shapes and dtypes of what it gives, if a status is in the dtype `rows`.
    fn outputs(self, inputs: &[TensorIr], rows: DType) -> Vec<(Shape, DType)> {
        let status = |tensors: usize| (Shape::from([tensors * FIELDS]), rows);
        let like = |tensor: &TensorIr| (tensor.shape.clone(), tensor.dtype);
        let first = &inputs[0];
        match self {
            Self::Unscale { keep_dtype, .. } => {
                let tensors = &inputs[..inputs.len() - 1];
                let dtype = |tensor: &TensorIr| product_dtype(tensor.dtype, keep_dtype);
                let product = |tensor: &TensorIr| (tensor.shape.clone(), dtype(tensor));
                let status = status(tensors.len());
                tensors.iter().map(product).chain([status]).collect()
            }
            Self::Inspect { .. } => vec![status(inputs.len())],
            Self::Histogram => vec![(Shape::from([2 * BINS]), DType::F32)],
            Self::Blend { .. } | Self::Advance { .. } => vec![like(first)],
            Self::MulCast { dtype, .. } => vec![(first.shape.clone(), dtype.into())],
            Self::Update { rule } => {
                let parameters = rule.parameters(inputs, |tensor| tensor.dtype);
                let written = parameters.iter().flat_map(|own| &own[1..]);
                written.map(|tensor| like(tensor)).collect()
            }
            Self::Decide { .. } => {
                let parameters = first.shape.num_elements() / UNDECIDED;
                vec![(Shape::from([parameters, ROW]), DType::F32)]
            }
        }
    }
}

/// Notes a job, with ids for its outputs that `new_id` gives, for a device that has a status in the dtype `rows`.
pub(super) fn describe(
    job: Job,
    inputs: &[TensorIr],
    rows: DType,
    new_id: impl Fn() -> TensorId,
) -> CustomOpIr {
    let (name, numbers) = job.encoded();
    let output = |(shape, dtype)| TensorIr::uninit(new_id(), shape, dtype);
    let outputs: Vec<TensorIr> = job.outputs(inputs, rows).into_iter().map(output).collect();
    let scalars = numbers.map(ScalarIr::Float).to_vec();
    CustomOpIr::with_scalars(name, inputs, &outputs, scalars)
}

/// Does what was queued.
pub(super) fn execute<B: BackendIr + AmpOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let job = Job::of(desc).unwrap_or_else(|| panic!("{desc:?} is not a job of burn-amp"));
    let inputs = (desc.inputs.iter()).map(|ir| handles.get_float_tensor::<B>(ir));
    let outputs = B::amp_run(TensorVec(inputs.collect()), job);
    for (ir, tensor) in desc.outputs.iter().zip(outputs.0) {
        // Flex has a status in f64, which a captured graph takes in f32.
        handles.register_float_tensor::<B>(&ir.id, cast::<B>(tensor, ir.dtype));
    }
}
