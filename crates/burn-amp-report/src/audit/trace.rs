//! What passes the probes of one run of an audit.

use burn::tensor::{DType, Gradients, Tensor};
use burn_amp_core::internal::observe::{Observer, locked, scale_here};
use std::sync::Mutex;

use crate::place::Names;

/// Keeps tensors and their gradients.
#[derive(Default)]
pub(crate) struct Trace {
    /// Set where tensors are kept; else only the names are.
    pub(super) keeps: bool,
    pub(super) visits: Mutex<Visits>,
}

#[derive(Default)]
pub(super) struct Visits {
    list: Vec<Visit>,
    names: Names,
}

/// A probe that was passed, or the end of a scope.
pub(crate) struct Visit {
    /// The name, with a number from the second time on.
    pub(crate) name: String,
    /// The name as it was given.
    pub(crate) layer: String,
    /// Set where the audit can run it in f32.
    pub(crate) is_layer: bool,
    /// Set where it is no probe, but leaves `autocast`.
    pub(crate) is_output: bool,
    pub(crate) dtype: DType,
    /// The factor of its gradient.
    pub(crate) scale: f64,
    pub(crate) shape: Vec<usize>,
    /// Flat, without a graph.
    pub(crate) value: Option<Tensor<1>>,
    pub(crate) gradient: Option<Tensor<1>>,
    leaf: Option<Leaf>,
}

/// Takes the gradient of a leaf, flat.
type Leaf = Box<dyn FnOnce(&Gradients) -> Option<Tensor<1>> + Send>;

impl Trace {
    /// One that keeps the tensors.
    pub(crate) fn of_all() -> Self {
        Self {
            keeps: true,
            ..Self::default()
        }
    }

    pub(crate) fn probe<const D: usize>(
        &self,
        name: &str,
        mut x: Tensor<D>,
        is_layer: bool,
    ) -> Tensor<D> {
        let mut visits = locked(&self.visits);
        let mut visit = Visit {
            name: visits.names.next(name),
            layer: name.to_string(),
            is_layer,
            is_output: false,
            dtype: x.dtype(),
            scale: scale_here(x.dtype()),
            shape: x.dims().to_vec(),
            value: None,
            gradient: None,
            leaf: None,
        };
        let elements = x.shape().num_elements();
        if self.keeps && elements > 0 {
            let value = x.clone().detach().set_require_grad(false);
            visit.value = Some(value.clone().inner().reshape([elements]));
            if x.is_tracked() {
                // Burn keeps the gradients of leaves alone: that of a zero beside it is the same.
                let zero = value.zeros_like().require_grad();
                let leaf = zero.clone();
                visit.leaf = Some(Box::new(move |grads| {
                    leaf.grad(grads).map(|grad| grad.reshape([elements]))
                }));
                x = x + zero;
            }
        }
        visits.list.push(visit);
        x
    }

    /// Takes the probes out, with their gradients.
    pub(crate) fn take(&self, grads: &Gradients) -> Vec<Visit> {
        let mut list = std::mem::take(&mut locked(&self.visits).list);
        for visit in &mut list {
            visit.gradient = visit.leaf.take().and_then(|leaf| leaf(grads));
        }
        list
    }
}

impl Observer for Trace {
    fn left(&self, output: Tensor<1>) {
        if !self.keeps {
            return;
        }
        let name = "output of autocast".to_string();
        locked(&self.visits).list.push(Visit {
            layer: name.clone(),
            name,
            is_layer: false,
            is_output: true,
            dtype: output.dtype(),
            scale: 1.0,
            shape: output.dims().to_vec(),
            value: Some(output),
            gradient: None,
            leaf: None,
        });
    }
}
