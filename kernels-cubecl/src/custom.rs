//! Jobs as Burn's custom operations, for all backends that note operations and run them later or elsewhere.

use burn::{
    backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr},
    tensor::{DType, Shape},
};

use crate::{
    histogram::BINS,
    ops::{AmpOps, Job, TensorVec, cast},
    rows::FIELDS,
    update_row::{ROW, UNDECIDED, UpdateRule},
};

const UNSCALE: &str = "amp::unscale";
const INSPECT: &str = "amp::inspect";
const HISTOGRAM: &str = "amp::histogram";
const BLEND: &str = "amp::blend";
const MUL_CAST: &str = "amp::mul_cast";
const UPDATE: &str = "amp::update";
const ADVANCE: &str = "amp::advance";
const DECIDE: &str = "amp::decide";

/// All of them, for a registry.
#[cfg(feature = "router")]
pub(crate) const IDS: [&str; 8] = [
    UNSCALE, INSPECT, HISTOGRAM, BLEND, MUL_CAST, UPDATE, ADVANCE, DECIDE,
];

/// Notes a job, with ids for its outputs that `new_id` gives.
pub(crate) fn note(job: Job, inputs: &[TensorIr], new_id: impl Fn() -> TensorId) -> CustomOpIr {
    let float = |value: f32| ScalarIr::Float(value.into());
    let (id, scalars) = match job {
        Job::Unscale { keep_dtype, edge } => {
            (UNSCALE, vec![ScalarIr::Bool(keep_dtype), float(edge)])
        }
        Job::Inspect { edge } => (INSPECT, vec![float(edge)]),
        Job::Histogram => (HISTOGRAM, vec![]),
        Job::Blend { keep, add } => (BLEND, vec![ScalarIr::Float(keep), ScalarIr::Float(add)]),
        Job::MulCast { factor, .. } => (MUL_CAST, vec![ScalarIr::Float(factor)]),
        Job::Update { rule } => (UPDATE, rule_scalars(rule)),
        Job::Advance => (ADVANCE, vec![]),
        Job::Decide { rule } => (DECIDE, rule_scalars(rule)),
    };
    let output = |(shape, dtype)| TensorIr::uninit(new_id(), shape, dtype);
    let outputs: Vec<TensorIr> = outputs(job, inputs).into_iter().map(output).collect();
    CustomOpIr::with_scalars(id, inputs, &outputs, scalars)
}

/// The shapes and dtypes of what a job gives.
fn outputs(job: Job, inputs: &[TensorIr]) -> Vec<(Shape, DType)> {
    let flat = |length: usize| (Shape::from([length]), DType::F32);
    let first = &inputs[0];
    match job {
        Job::Unscale { keep_dtype, .. } => {
            let tensors = &inputs[..inputs.len() - 1];
            let product = |tensor: &TensorIr| match keep_dtype || tensor.dtype == DType::F64 {
                true => (tensor.shape.clone(), tensor.dtype),
                false => (tensor.shape.clone(), DType::F32),
            };
            let products = tensors.iter().map(product);
            products.chain([flat(tensors.len() * FIELDS)]).collect()
        }
        Job::Inspect { .. } => vec![flat(inputs.len() * FIELDS)],
        Job::Histogram => vec![flat(2 * BINS)],
        Job::Blend { .. } | Job::Advance => vec![(first.shape.clone(), first.dtype)],
        Job::Decide { .. } => {
            let parameters = first.shape.num_elements() / UNDECIDED;
            vec![(Shape::from([parameters, ROW]), DType::F32)]
        }
        Job::MulCast { dtype, .. } => vec![(first.shape.clone(), dtype.into())],
        Job::Update { rule } => {
            let mut tensors = &inputs[..inputs.len() - 1];
            let mut outputs = Vec::new();
            while let [_, parameter, ..] = tensors {
                let (own, rest) = tensors.split_at(rule.tensors(parameter.dtype));
                outputs.extend((own[1..].iter()).map(|own| (own.shape.clone(), own.dtype)));
                tensors = rest;
            }
            outputs
        }
    }
}

fn rule_scalars(rule: UpdateRule) -> Vec<ScalarIr> {
    let (which, first, second) = match rule {
        UpdateRule::Sgd { momentum, nesterov } => (0, momentum, nesterov),
        UpdateRule::Adam { amsgrad } => (1, amsgrad, false),
        UpdateRule::AdamW { amsgrad, cautious } => (2, amsgrad, cautious),
    };
    vec![
        ScalarIr::UInt(which),
        ScalarIr::Bool(first),
        ScalarIr::Bool(second),
    ]
}

fn rule(which: u64, first: bool, second: bool) -> UpdateRule {
    match which {
        0 => UpdateRule::Sgd {
            momentum: first,
            nesterov: second,
        },
        1 => UpdateRule::Adam { amsgrad: first },
        _ => UpdateRule::AdamW {
            amsgrad: first,
            cautious: second,
        },
    }
}

/// Does what was noted.
pub(crate) fn execute<B: BackendIr + AmpOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let job = match (desc.id.as_str(), desc.scalars.as_slice()) {
        (UNSCALE, [ScalarIr::Bool(keep_dtype), ScalarIr::Float(edge)]) => Job::Unscale {
            keep_dtype: *keep_dtype,
            edge: *edge as f32,
        },
        (INSPECT, [ScalarIr::Float(edge)]) => Job::Inspect { edge: *edge as f32 },
        (HISTOGRAM, []) => Job::Histogram,
        (ADVANCE, []) => Job::Advance,
        (BLEND, [ScalarIr::Float(keep), ScalarIr::Float(add)]) => Job::Blend {
            keep: *keep,
            add: *add,
        },
        (MUL_CAST, [ScalarIr::Float(factor)]) => Job::MulCast {
            dtype: desc.outputs[0].dtype.into(),
            factor: *factor,
        },
        (
            id @ (UPDATE | DECIDE),
            [
                ScalarIr::UInt(which),
                ScalarIr::Bool(first),
                ScalarIr::Bool(second),
            ],
        ) => match (id, rule(*which, *first, *second)) {
            (UPDATE, rule) => Job::Update { rule },
            (_, rule) => Job::Decide { rule },
        },
        (id, scalars) => panic!("`{id}` with {scalars:?} is not an operation of burn-amp"),
    };
    let inputs = (desc.inputs.iter()).map(|ir| handles.get_float_tensor::<B>(ir));
    let outputs = B::amp_run(TensorVec(inputs.collect()), job);
    for (ir, tensor) in desc.outputs.iter().zip(outputs.0) {
        // Flex has a status in f64.
        handles.register_float_tensor::<B>(&ir.id, cast::<B>(tensor, ir.dtype));
    }
}
