//! Tensors of any rank, numbers as they are stored, and the parameters of a module.

pub(crate) mod any_tensor;
pub(crate) mod convert;
pub(crate) mod dtype;
pub(crate) mod module_path;
pub(crate) mod number;
pub(crate) mod param_tensors;
pub(crate) mod rank;
