//! Parameters and packs in a form that can be compared bit by bit.

use crate::prelude::*;
use burn_pack::{DType, Reader, Tensor as Stored, Writer};

/// Dtype, shape and bytes.
pub type Values = (DType, Vec<usize>, Vec<u8>);

/// The values of any float tensor.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.inner().cast(FloatDType::F32).to_data();
    data.iter::<f32>().collect()
}

/// All that a burnpack holds. The order of its data section is left out: optimizers have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    /// With the parameter's id.
    pub tensors: BTreeMap<String, (Option<u64>, Values)>,
    /// By name.
    pub scalars: BTreeMap<String, Scalar>,
    /// By name.
    pub metadata: BTreeMap<String, String>,
}

/// The parameter whose state our part of a record is.
pub const SECTION: u64 = u64::from_le_bytes(*b"burn_amp");

impl Pack {
    /// The name of our index of states.
    pub fn index_name() -> String {
        format!("{SECTION}.record")
    }

    /// Our index of states, without its tensor.
    pub fn take_index(&mut self) -> Option<Value> {
        let (_, (.., json)) = self.tensors.remove(&Self::index_name())?;
        Some(serde_json::from_slice(&json).unwrap())
    }

    /// With an index of states.
    pub fn with_index(mut self, index: &Value) -> Self {
        let json = index.to_string().into_bytes();
        let values = (DType::U8, vec![json.len()], json);
        self.tensors
            .insert(Self::index_name(), (Some(SECTION), values));
        self
    }

    /// The burnpack as it is, whatever its checksum says.
    pub fn into_bytes(self) -> Bytes {
        let tensors = self.tensors.into_iter();
        let tensors = tensors.map(|(name, (id, (dtype, shape, bytes)))| {
            Stored::new(name, dtype, shape, id, Bytes::from_bytes_vec(bytes))
        });
        let mut writer = Writer::new(tensors.collect());
        for (name, value) in &self.scalars {
            writer = writer.with_scalar(name, *value);
        }
        for (name, value) in &self.metadata {
            writer = writer.with_metadata(name, value);
        }
        writer.into_bytes().unwrap()
    }
}

/// The state of an optimizer.
pub fn state<O: ModuleOptim>(optim: &O) -> Pack {
    pack(optim.to_record().unwrap().into_bytes().unwrap())
}

/// The record of a scaled optimizer.
pub fn contents<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>) -> Pack {
    pack(optim.into_bytes().unwrap())
}

/// Has an optimizer load what it must refuse; it stays as it is.
pub fn refused<O: ModuleOptim>(
    optim: &mut ScaledOptimizer<O>,
    load: impl FnOnce(&mut ScaledOptimizer<O>) -> Result<(), AmpError>,
) -> AmpError {
    let before = contents(optim);
    let error = quietly(|| load(optim)).expect("no panic").unwrap_err();
    assert_eq!(contents(optim), before, "{error}");
    error
}

/// Opens a burnpack.
pub fn pack(bytes: Bytes) -> Pack {
    let reader = Reader::from_bytes(bytes).unwrap();
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().unwrap();
        (name, (id, (dtype, shape.to_vec(), bytes.to_vec())))
    });
    Pack {
        tensors: tensors.collect(),
        scalars,
        metadata,
    }
}

/// Every float parameter of a module: its path, its id, its stored value.
pub fn parameters<M: Module>(module: &M) -> BTreeMap<String, (u64, Values)> {
    let found = collect(module, None).into_iter();
    let found = found.map(|(path, id, data)| {
        let bytes = data.as_bytes().to_vec();
        (path, (id, (data.dtype(), data.shape().to_vec(), bytes)))
    });
    found.collect()
}

/// Dtype and bytes of every float parameter, in the module's order.
pub fn stored<M: Module>(module: &M) -> Vec<(DType, Vec<u8>)> {
    let found = collect(module, None).into_iter();
    let found = found.map(|(.., data)| (data.dtype(), data.as_bytes().to_vec()));
    found.collect()
}

/// The stored values of all float parameters, which must be f32.
pub fn numbers<M: Module>(module: &M) -> Vec<f32> {
    let stored = stored(module).into_iter();
    let numbers = stored.flat_map(|(dtype, bytes)| f32s(dtype, bytes));
    numbers.collect()
}

/// The numbers behind the bytes of an f32 tensor.
pub fn f32s(dtype: DType, bytes: Vec<u8>) -> Vec<f32> {
    let length = bytes.len() / dtype.size();
    let data = TensorData::from_bytes_vec(bytes, [length], dtype);
    data.try_to_vec().unwrap()
}

/// Path, dtype and values of every gradient, in the module's order.
pub fn gradients_by_path<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Vec<(String, DType, Vec<f32>)> {
    let found = collect(module, Some(grads)).into_iter();
    let found = found.map(|(path, _, data)| (path, data.dtype(), data.iter().collect()));
    found.collect()
}

/// Of every float parameter its path, its id, and its stored value; or its gradient, if it has one among these.
fn collect<M: Module>(module: &M, grads: Option<&GradientsParams>) -> Found {
    let mut collect = Collect(grads, Vec::new(), Vec::new());
    module.visit(&mut collect);
    collect.2
}

type Found = Vec<(String, u64, TensorData)>;

/// The gradients if they are wanted, the path so far, and what was found.
struct Collect<'a>(Option<&'a GradientsParams>, Vec<String>, Found);

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.1.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.1.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = match self.0 {
            None => Some(param.base().to_data()),
            Some(grads) => grads.get::<D>(param.id).map(Tensor::into_data),
        };
        let found = data.map(|data| (self.1.join("."), param.id.val(), data));
        self.2.extend(found);
    }
}
