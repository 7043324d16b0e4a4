//! Optimizer state in a form that can be compared bit by bit.

use burn_amp_tests::prelude::*;
use burn_pack::{DType, Reader, Scalar};
use std::collections::BTreeMap;

/// All that an optimizer remembers, by name: its record has no order of its own.
#[derive(Debug, PartialEq)]
pub struct State {
    pub tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    pub scalars: BTreeMap<String, Scalar>,
    pub paths: BTreeMap<String, String>,
}

/// The state of `optim`, read back from its record.
pub fn state<O: ModuleOptim>(optim: &O) -> State {
    let bytes = optim.to_record().unwrap().into_bytes().unwrap();
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
