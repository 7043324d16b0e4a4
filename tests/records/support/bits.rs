//! Parameters and packs in a form that can be compared bit by bit.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Bytes, Tensor},
};
use burn_pack::{DType, Reader, Scalar};
use std::collections::BTreeMap;

/// Dtype, shape and bytes.
pub type Values = (DType, Vec<usize>, Vec<u8>);

/// All that a burnpack holds. The order of its data section is left out: optimizers have none.
#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    /// With the parameter's id.
    pub tensors: BTreeMap<String, (Option<u64>, Values)>,
    pub scalars: BTreeMap<String, Scalar>,
    pub metadata: BTreeMap<String, String>,
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
    #[derive(Default)]
    struct Collect {
        path: Vec<String>,
        found: BTreeMap<String, (u64, Values)>,
    }

    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.base().to_data();
            let values = (
                data.dtype(),
                data.shape().to_vec(),
                data.as_bytes().to_vec(),
            );
            self.found
                .insert(self.path.join("."), (param.id.val(), values));
        }
    }

    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.found
}
