//! Jobs as Burn's custom operations, for all backends that queue operations and run them later or elsewhere.

use burn::backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr};
use burn::tensor::{DType, FloatDType, Shape};

use super::compose::cast;
use crate::job::{Elementwise, Job, product_dtype};
use crate::ops::{AmpOps, TensorVec};
use crate::step::{ROW, UNDECIDED, UpdateRule};
use crate::{histogram::BINS, status::FIELDS};

/// The name of an operation. With this version: a server of another one may mean something else, and does not know it.
macro_rules! name {
    ($job:literal) => {
        concat!("amp-", env!("CARGO_PKG_VERSION"), "::", $job)
    };
}

impl Job {
    /// All jobs as they are queued: of two numbers, and the dtype of what they give first.
    pub(super) const ALL: [fn([f64; 2], FloatDType) -> Self; 9] = [
        |[keep_dtype, edge], _| Self::Unscale {
            keep_dtype: keep_dtype != 0.0,
            edge: edge as f32,
        },
        |[_, edge], _| Self::Inspect { edge: edge as f32 },
        |_, _| Self::Histogram,
        |[keep, add], _| Self::Elementwise(Elementwise::Blend { keep, add }),
        |[factor, _], dtype| Self::Elementwise(Elementwise::MulCast { dtype, factor }),
        |[rule, _], _| Self::Update {
            rule: UpdateRule::of_number(rule as u8),
        },
        |[largest, _], _| Self::Advance {
            largest: largest as f32,
        },
        |_, _| Self::Clip,
        |[rule, _], _| Self::Decide {
            rule: UpdateRule::of_number(rule as u8),
        },
    ];

    /// The job that was queued so.
    pub(super) fn decoded(desc: &CustomOpIr) -> Option<Self> {
        let dtype = desc.outputs.first()?.dtype.into();
        let mut numbers = desc.scalars.iter().map(|number| number.elem());
        let numbers = [numbers.next()?, numbers.next()?];
        let mut jobs = Self::ALL.iter().map(|job| job(numbers, dtype));
        jobs.find(|job| job.encoded().0 == desc.id)
    }

    /// Its name, and its numbers.
    pub(super) fn encoded(self) -> (&'static str, [f64; 2]) {
        match self {
            Self::Unscale { keep_dtype, edge } => {
                (name!("unscale"), [keep_dtype.into(), edge.into()])
            }
            Self::Inspect { edge } => (name!("inspect"), [0.0, edge.into()]),
            Self::Histogram => (name!("histogram"), [0.0; 2]),
            Self::Elementwise(Elementwise::Blend { keep, add }) => (name!("blend"), [keep, add]),
            Self::Elementwise(Elementwise::MulCast { factor, .. }) => {
                (name!("mul_cast"), [factor, 0.0])
            }
            Self::Update { rule } => (name!("update"), [rule.number().into(), 0.0]),
            Self::Advance { largest } => (name!("advance"), [largest.into(), 0.0]),
            Self::Clip => (name!("clip"), [0.0; 2]),
            Self::Decide { rule } => (name!("decide"), [rule.number().into(), 0.0]),
        }
    }

    /// The shapes and dtypes of what it gives, if a status is in the dtype `rows`.
    pub(super) fn outputs(self, inputs: &[TensorIr], rows: DType) -> Vec<(Shape, DType)> {
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
            Self::Elementwise(Elementwise::Blend { .. }) | Self::Advance { .. } => {
                vec![like(first)]
            }
            Self::Elementwise(Elementwise::MulCast { dtype, .. }) => {
                vec![(first.shape.clone(), dtype.into())]
            }
            Self::Update { rule } => {
                let parameters = rule.parameters(inputs, |tensor| tensor.dtype);
                let written = parameters.iter().flat_map(|own| &own[1..]);
                written.map(|tensor| like(tensor)).collect()
            }
            Self::Clip => {
                let gradients = inputs[1].shape.num_elements() / FIELDS;
                vec![(Shape::from([gradients]), DType::F32)]
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
    let job = Job::decoded(desc).unwrap_or_else(|| panic!("{desc:?} is not a job of burn-amp"));
    let inputs = (desc.inputs.iter()).map(|ir| handles.get_float_tensor::<B>(ir));
    let outputs = B::amp_run(TensorVec(inputs.collect()), job);
    for (ir, tensor) in desc.outputs.iter().zip(outputs.0) {
        // Flex has a status in f64, which a captured graph takes in f32.
        handles.register_float_tensor::<B>(&ir.id, cast::<B>(tensor, ir.dtype));
    }
}
