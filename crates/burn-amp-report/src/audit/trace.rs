//! What passes the probes of one run of an audit.

use burn::tensor::{DType, FloatDType, Gradients, Tensor};
use burn_amp::{
    UnscaledGradients,
    observe::{self, Observer, Stepped},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Keeps tensors and their gradients, and knows which layers run in f32.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) in_f32: BTreeSet<String>,
    /// Whether tensors are kept; else only the names.
    keeps: bool,
    visits: Mutex<Visits>,
}

#[derive(Default)]
struct Visits {
    list: Vec<Visit>,
    /// How often a name came.
    names: HashMap<String, usize>,
}

/// A probe that was passed.
pub(crate) struct Visit {
    /// The name, with a number from the second time on.
    pub(crate) name: String,
    /// As it was given.
    pub(crate) layer: String,
    /// Whether the audit can run it in f32.
    pub(crate) is_layer: bool,
    pub(crate) dtype: DType,
    /// What its gradient is multiplied by.
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
    pub(crate) fn new(keeps: bool, in_f32: BTreeSet<String>) -> Self {
        Self {
            in_f32,
            keeps,
            visits: Mutex::default(),
        }
    }

    pub(crate) fn probe<const D: usize>(
        &self,
        name: &str,
        x: Tensor<D>,
        is_layer: bool,
    ) -> Tensor<D> {
        let mut visits = self.visits();
        let times = visits.names.entry(name.to_string()).or_default();
        *times += 1;
        let mut visit = Visit {
            name: match *times {
                1 => name.to_string(),
                times => format!("{name} ({times})"),
            },
            layer: name.to_string(),
            is_layer,
            dtype: x.dtype(),
            scale: match FloatDType::from(x.dtype()) {
                FloatDType::F16 | FloatDType::BF16 => observe::scale_here(),
                _ => 1.0,
            },
            shape: x.dims().to_vec(),
            value: None,
            gradient: None,
            leaf: None,
        };
        let elements = x.shape().num_elements();
        if !self.keeps || elements == 0 {
            visits.list.push(visit);
            return x;
        }
        let value = x.clone().detach().set_require_grad(false);
        visit.value = Some(value.clone().inner().reshape([elements]));
        if !x.is_tracked() {
            visits.list.push(visit);
            return x;
        }
        // Burn keeps the gradients of leaves alone: that of a zero beside it is the same.
        let zero = value.zeros_like().require_grad();
        let leaf = zero.clone();
        visit.leaf = Some(Box::new(move |grads| {
            leaf.grad(grads).map(|grad| grad.reshape([elements]))
        }));
        visits.list.push(visit);
        x + zero
    }

    /// Takes the gradients at the probes.
    pub(crate) fn collect(&self, grads: &Gradients) {
        for visit in &mut self.visits().list {
            visit.gradient = visit.leaf.take().and_then(|leaf| leaf(grads));
        }
    }

    pub(crate) fn take(&self) -> Vec<Visit> {
        std::mem::take(&mut self.visits().list)
    }

    fn visits(&self) -> MutexGuard<'_, Visits> {
        // Nothing in here is left half written by a panic.
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Trace {
    fn tested(&self, _grads: &UnscaledGradients) {}

    fn stepped(&self, _step: Stepped<'_>) {}
}
