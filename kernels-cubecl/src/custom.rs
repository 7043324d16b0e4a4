//! The operations as Burn's custom operations: how each is written down, and how it is run from that, for all backends
//! that note operations and run them later or elsewhere.

use burn::{
    backend::ir::{BackendIr, CustomOpIr, HandleContainer, ScalarIr, TensorId, TensorIr},
    tensor::{DType, Shape},
};

use crate::{
    histogram::BINS,
    ops::{AmpOps, CastOps, TensorVec},
    words::WORDS,
};

const UNSCALE: &str = "amp::unscale";
const INSPECT: &str = "amp::inspect";
const HISTOGRAM: &str = "amp::histogram";
const VERDICT: &str = "amp::verdict";
const BLEND: &str = "amp::blend";
const MUL_CAST: &str = "amp::mul_cast";

/// The names of all of them, for a registry.
#[cfg(feature = "router")]
pub(crate) const IDS: [&str; 6] = [UNSCALE, INSPECT, HISTOGRAM, VERDICT, BLEND, MUL_CAST];

/// Writes operations down, with ids for their outputs that `new_id` gives.
pub(crate) struct Note<F>(pub(crate) F);

impl<F: Fn() -> TensorId> Note<F> {
    /// The inverse is the last input, the status the last output.
    pub(crate) fn unscale(
        self,
        mut tensors: Vec<TensorIr>,
        inverse: TensorIr,
        keep_dtype: bool,
        edge: f32,
    ) -> CustomOpIr {
        let product = |tensor: &TensorIr| match (keep_dtype, tensor.dtype) {
            (true, dtype) => self.output(tensor.shape.clone(), dtype),
            (_, DType::F64) => self.output(tensor.shape.clone(), DType::F64),
            _ => self.output(tensor.shape.clone(), DType::F32),
        };
        let mut outputs: Vec<TensorIr> = tensors.iter().map(product).collect();
        outputs.push(self.output([tensors.len() * WORDS], DType::I32));
        tensors.push(inverse);
        let scalars = [ScalarIr::Bool(keep_dtype), float(edge)];
        CustomOpIr::with_scalars(UNSCALE, &tensors, &outputs, scalars.into())
    }

    pub(crate) fn inspect(self, tensors: Vec<TensorIr>, edge: f32) -> CustomOpIr {
        let words = self.output([tensors.len() * WORDS], DType::I32);
        CustomOpIr::with_scalars(INSPECT, &tensors, &[words], vec![float(edge)])
    }

    pub(crate) fn histogram(self, tensors: Vec<TensorIr>) -> CustomOpIr {
        CustomOpIr::new(HISTOGRAM, &tensors, &[self.output([2 * BINS], DType::I32)])
    }

    pub(crate) fn verdict(self, words: TensorIr) -> CustomOpIr {
        CustomOpIr::new(VERDICT, &[words], &[self.output([2], DType::F32)])
    }

    #[cfg(feature = "router")]
    pub(crate) fn blend(
        self,
        target: TensorIr,
        source: TensorIr,
        keep: f64,
        add: f64,
    ) -> CustomOpIr {
        let sum = self.output(target.shape.clone(), target.dtype);
        let scalars = [ScalarIr::Float(keep), ScalarIr::Float(add)];
        CustomOpIr::with_scalars(BLEND, &[target, source], &[sum], scalars.into())
    }

    #[cfg(feature = "router")]
    pub(crate) fn mul_cast(self, tensor: TensorIr, dtype: DType, factor: f64) -> CustomOpIr {
        let product = self.output(tensor.shape.clone(), dtype);
        let scalars = vec![ScalarIr::Float(factor)];
        CustomOpIr::with_scalars(MUL_CAST, &[tensor], &[product], scalars)
    }

    fn output(&self, shape: impl Into<Shape>, dtype: DType) -> TensorIr {
        TensorIr::uninit((self.0)(), shape.into(), dtype)
    }
}

fn float(value: f32) -> ScalarIr {
    ScalarIr::Float(f64::from(value))
}

/// [`AmpOps`] of a backend that notes operations; `$register` hands one to a client.
macro_rules! noted {
    ($register:expr) => {
        fn amp_unscale(
            tensors: TensorVec<Self>,
            inverse: FloatTensor<Self>,
            keep_dtype: bool,
            edge: f32,
        ) -> UnscaledVec<Self> {
            let client = inverse.client.clone();
            let inputs = tensors.tensors.into_iter().map(|t| t.into_ir()).collect();
            let note = Note(|| client.create_empty_handle());
            let desc = note.unscale(inputs, inverse.into_ir(), keep_dtype, edge);
            let mut tensors = $register(&client, desc);
            let status = tensors.pop().expect("the status is the last output");
            UnscaledVec {
                tensors: TensorVec { tensors },
                status,
            }
        }

        fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
            let client = tensors.tensors[0].client.clone();
            let inputs = tensors.tensors.into_iter().map(|t| t.into_ir()).collect();
            let desc = Note(|| client.create_empty_handle()).inspect(inputs, edge);
            $register(&client, desc).remove(0)
        }

        fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
            let client = tensors.tensors[0].client.clone();
            let inputs = tensors.tensors.into_iter().map(|t| t.into_ir()).collect();
            let desc = Note(|| client.create_empty_handle()).histogram(inputs);
            $register(&client, desc).remove(0)
        }

        fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
            let client = words.client.clone();
            let desc = Note(|| client.create_empty_handle()).verdict(words.into_ir());
            $register(&client, desc).remove(0)
        }
    };
}
pub(crate) use noted;

/// Runs what was written down.
pub(crate) fn execute<B: BackendIr + AmpOps + CastOps>(
    handles: &mut HandleContainer<B::Handle>,
    desc: &CustomOpIr,
) {
    let output = desc.outputs.last().expect("an output");
    match (desc.id.as_str(), desc.scalars.as_slice()) {
        (UNSCALE, [ScalarIr::Bool(keep_dtype), ScalarIr::Float(edge)]) => {
            let (inverse, inputs) = desc.inputs.split_last().expect("the inverse");
            let tensors = floats::<B>(handles, inputs);
            let inverse = handles.get_float_tensor::<B>(inverse);
            let unscaled = B::amp_unscale(tensors, inverse, *keep_dtype, *edge as f32);
            for (ir, tensor) in desc.outputs.iter().zip(unscaled.tensors.tensors) {
                handles.register_float_tensor::<B>(&ir.id, tensor);
            }
            handles.register_int_tensor::<B>(&output.id, unscaled.status);
        }
        (INSPECT, [ScalarIr::Float(edge)]) => {
            let words = B::amp_inspect(floats::<B>(handles, &desc.inputs), *edge as f32);
            handles.register_int_tensor::<B>(&output.id, words);
        }
        (HISTOGRAM, []) => {
            let words = B::amp_histogram(floats::<B>(handles, &desc.inputs));
            handles.register_int_tensor::<B>(&output.id, words);
        }
        (VERDICT, []) => {
            let words = handles.get_int_tensor::<B>(&desc.inputs[0]);
            handles.register_float_tensor::<B>(&output.id, B::amp_verdict(words));
        }
        (BLEND, [ScalarIr::Float(keep), ScalarIr::Float(add)]) => {
            let target = handles.get_float_tensor::<B>(&desc.inputs[0]);
            let source = handles.get_float_tensor::<B>(&desc.inputs[1]);
            let sum = B::amp_blend(target, source, *keep, *add);
            handles.register_float_tensor::<B>(&output.id, sum);
        }
        (MUL_CAST, [ScalarIr::Float(factor)]) => {
            let tensor = handles.get_float_tensor::<B>(&desc.inputs[0]);
            let product = B::amp_mul_cast(tensor, output.dtype.into(), *factor);
            handles.register_float_tensor::<B>(&output.id, product);
        }
        (id, scalars) => panic!("`{id}` with {scalars:?} is not an operation of burn-amp"),
    }
}

fn floats<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    inputs: &[TensorIr],
) -> TensorVec<B> {
    let tensors = inputs.iter().map(|ir| handles.get_float_tensor::<B>(ir));
    TensorVec {
        tensors: tensors.collect(),
    }
}
