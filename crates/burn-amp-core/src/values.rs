//! Tensors of any rank, numbers as they are stored, and the parameters of a module.

mod any_tensor;
mod dtype;
mod module_path;
pub mod number;
mod param_tensors;
mod rank;

pub use any_tensor::AnyTensor;
pub(crate) use dtype::optimizer_dtype;
pub use dtype::{is_half, working_dtype};
pub use module_path::{
    Parameter, SCOPED, distinct_parameters, ids_with_gradient, parameters, replaced,
};
pub use param_tensors::{ParamTensor, ParamTensors};
pub(crate) use rank::with_rank;
