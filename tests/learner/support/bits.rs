//! Parameters and files in a form that can be compared bit by bit.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};
use burn_pack::{DType, Reader, Scalar};
use std::{collections::BTreeMap, path::Path};

/// Dtype, shape and bytes.
pub type Values = (DType, Vec<usize>, Vec<u8>);

/// All that a burnpack holds, without the ids of its parameters, which are random.
#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    pub tensors: BTreeMap<String, Values>,
    pub scalars: BTreeMap<String, Scalar>,
    pub metadata: BTreeMap<String, String>,
}

/// Opens a model's or a scheduler's file.
pub fn pack(path: &Path) -> Pack {
    let reader = Reader::from_file(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
        (name, (dtype, shape.to_vec(), bytes.to_vec()))
    });
    Pack {
        tensors: tensors.collect(),
        scalars,
        metadata,
    }
}

/// Opens an optimizer's file: ids are replaced by the paths that they have in the model of the same epoch.
pub fn optimizer_pack<M: Module>(path: &Path, model: &M) -> Pack {
    let names: BTreeMap<String, String> = parameters(model)
        .into_iter()
        .map(|(path, (id, _))| (id.to_string(), path))
        .collect();
    let rename = |name: String| match name.split_once('.') {
        Some((id, field)) => format!("{}/{field}", names[id]),
        None => names[&name].clone(),
    };
    let Pack {
        tensors,
        scalars,
        metadata,
    } = pack(path);
    Pack {
        tensors: tensors.into_iter().map(|(n, v)| (rename(n), v)).collect(),
        scalars: scalars.into_iter().map(|(n, v)| (rename(n), v)).collect(),
        metadata: metadata.into_iter().map(|(n, v)| (rename(n), v)).collect(),
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
