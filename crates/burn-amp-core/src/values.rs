//! Tensors of any rank, numbers as they are stored, and the parameters of a module.

pub(crate) mod any_tensor;
pub(crate) mod convert;
pub(crate) mod dtype;
pub(crate) mod module_path;
pub mod number;
pub(crate) mod param_tensors;
pub(crate) mod rank;

pub(crate) use any_tensor::AnyTensor;
pub(crate) use dtype::{is_half, optimizer_dtype, working_dtype};
pub(crate) use module_path::{Parameter, SCOPED, distinct_parameters, parameters, replaced};
pub(crate) use param_tensors::{ParamTensor, ParamTensors};
pub(crate) use rank::with_rank;
