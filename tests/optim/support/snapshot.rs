//! Parameters and optimizer state in a form that can be compared bit by bit.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};
use burn_amp::ModuleOptim;
use burn_pack::{DType, Reader, Scalar};
use std::collections::BTreeMap;

/// The bytes of every parameter, in the module's order.
pub fn parameters<M: Module>(module: &M) -> Vec<(DType, Vec<u8>)> {
    struct Collect(Vec<(DType, Vec<u8>)>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.base().to_data();
            self.0.push((data.dtype(), data.as_bytes().to_vec()));
        }
    }

    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

/// All that an optimizer remembers, by name: its record has no order of its own.
#[derive(Debug, PartialEq)]
pub struct State {
    pub tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    pub scalars: BTreeMap<String, Scalar>,
    pub paths: BTreeMap<String, String>,
}

/// The state of `optim`, read back from its record.
pub fn state<O: ModuleOptim>(optim: &O) -> State {
    let bytes = optim.try_to_record().unwrap().into_bytes().unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
    let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
        (name, (dtype, shape.to_vec(), bytes.to_vec()))
    });
    State {
        tensors: tensors.collect(),
        scalars,
        paths,
    }
}
