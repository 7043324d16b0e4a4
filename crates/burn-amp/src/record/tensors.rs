//! Tensors by parameter, in a container: each is named after its parameter, `{id}.burn_amp.{what}`, as an optimizer's own
//! are, whose readers pass over them.

use burn::{
    module::ParamId,
    tensor::{DType, TensorData},
};
use burn_pack::Tensor;

use super::Container;
use crate::{error::AmpError, param_tensors::ParamTensors};

impl Container {
    /// Adds tensors, their names ending in `field`. On some devices they are read when the container is written.
    pub(crate) fn put_params(&mut self, tensors: &ParamTensors, field: &str) {
        let pack = |(id, data): (ParamId, TensorData)| {
            let name = format!("{}{field}", id.val());
            let (bytes, shape, dtype) = data.into_parts();
            Tensor::new(name, dtype, shape, Some(id.val()), bytes)
        };
        self.hold(tensors.clone());
        self.extend(tensors.to_data().into_iter().map(pack).collect());
    }

    /// Takes out the tensors whose names end in `field`. They stay on the host until their parameter's device is known.
    pub(crate) fn take_params(&mut self, field: &str) -> Result<ParamTensors, AmpError> {
        let mut all = ParamTensors::default();
        for tensor in self.split_tensors(|name| name.ends_with(field)) {
            let name = tensor.name.clone();
            let (_, dtype, shape, id, bytes) = tensor
                .into_parts()
                .map_err(|error| self.damaged(error.to_string()))?;
            let id =
                id.ok_or_else(|| self.damaged(format!("tensor `{name}` belongs to no parameter")))?;
            if !matches!(dtype, DType::F32 | DType::F64) {
                let found = dtype.name();
                let reason = format!("tensor `{name}` is {found}, but must be f32 or f64");
                return Err(self.damaged(reason));
            }
            all.insert(id.into(), TensorData::from_bytes(bytes, shape, dtype));
        }
        Ok(all)
    }
}
