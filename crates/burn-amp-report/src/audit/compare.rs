//! Tensors of two runs beside each other, measured on the device.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::AmpError;
use burn_amp_kernels::{TensorList, TensorStatus, inspect};
use serde::Serialize;
use std::collections::HashSet;

/// A gradient of a parameter, flat.
pub(crate) struct Gradient {
    pub(crate) path: String,
    pub(crate) values: Tensor<1>,
}

/// The gradients of a module, in its order, with the paths that optimizers see.
pub(crate) fn gradients<M: Module>(grads: &GradientsParams, module: &M) -> Vec<Gradient> {
    let mut collect = Collect {
        grads,
        names: Vec::new(),
        seen: HashSet::new(),
        found: Vec::new(),
    };
    module.visit(&mut collect);
    collect.found
}

/// Whether a parameter of a module is infinite or NaN itself, the first.
pub(crate) fn broken_parameter<M: Module>(module: &M) -> Result<Option<String>, AmpError> {
    let mut collect = Values::default();
    module.visit(&mut collect);
    let statuses = measure(collect.found.iter().map(|found| &found.values))?;
    let mut found = collect.found.into_iter().zip(statuses);
    Ok(found
        .find(|(_, status)| status.non_finite > 0)
        .map(|(found, _)| found.path))
}

struct Collect<'a> {
    grads: &'a GradientsParams,
    names: Vec<String>,
    seen: HashSet<ParamId>,
    found: Vec<Gradient>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(grad) = self.grads.get::<D>(param.id) {
            let elements = grad.shape().num_elements();
            if elements > 0 {
                self.found.push(Gradient {
                    path: self.names.join("."),
                    values: grad.inner().reshape([elements]),
                });
            }
        }
    }
}

#[derive(Default)]
struct Values {
    names: Vec<String>,
    found: Vec<Gradient>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.names.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let elements = param.shape().num_elements();
        if elements > 0 {
            self.found.push(Gradient {
                path: self.names.join("."),
                values: param.base().inner().reshape([elements]),
            });
        }
    }
}

/// What was found in a tensor, against the same in f32.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Of the angle to f32; none where one of them is zero or not finite.
    pub(crate) cosine: Option<f64>,
    /// The norm over that in f32.
    pub(crate) norm_ratio: Option<f64>,
    /// The share of the values that are not zero in f32 and are zero here, from 0 to 1.
    pub(crate) lost: f64,
    /// Infinities and NaN that are finite in f32.
    pub(crate) non_finite: u64,
    /// How often the largest value can be doubled before it overflows; none where it is zero or in f32.
    pub(crate) headroom: Option<f64>,
    /// The norm of the difference over that in f32.
    pub(crate) error: Option<f64>,
    #[serde(skip)]
    pub(crate) zeros: u64,
    /// The root of the mean square of the difference.
    #[serde(skip)]
    pub(crate) error_rms: f64,
}

/// One side of a comparison: values, multiplied by `scale` in `dtype`.
pub(crate) struct Side<'a> {
    pub(crate) values: &'a Tensor<1>,
    pub(crate) scale: f64,
    /// In which overflow is looked for; none for f32.
    pub(crate) half: Option<FloatDType>,
}

/// Compares tensors with those of the f32 run, of which `references` are the measures. Waits for each device.
pub(crate) fn compare(
    sides: &[Side<'_>],
    references: &[(&Tensor<1>, TensorStatus)],
) -> Result<Vec<Figures>, AmpError> {
    let wide: Vec<_> = (sides.iter())
        .map(|side| {
            let wide = match side.values.dtype() {
                DType::F16 | DType::BF16 => side.values.clone().cast(FloatDType::F32),
                _ => side.values.clone(),
            };
            match side.scale {
                1.0 => wide,
                scale => wide.mul_scalar(1.0 / scale),
            }
        })
        .collect();
    let differences: Vec<_> = (wide.iter().zip(references))
        .map(|(wide, (reference, _))| {
            wide.clone()
                - (*reference)
                    .clone()
                    .to_device(&wide.device())
                    .cast(wide.dtype())
        })
        .collect();
    let statuses = measure(sides.iter().map(|side| side.values))?;
    let differences = measure(differences.iter())?;
    let found = sides
        .iter()
        .zip(references)
        .zip(statuses.into_iter().zip(differences));
    Ok(found
        .map(|((side, (_, reference)), (status, difference))| {
            figures(side, reference, &status, &difference)
        })
        .collect())
}

fn figures(
    side: &Side<'_>,
    reference: &TensorStatus,
    status: &TensorStatus,
    difference: &TensorStatus,
) -> Figures {
    let norm = status.norm / side.scale;
    let finite = status.non_finite == 0 && reference.non_finite == 0;
    let comparable = finite && norm > 0.0 && reference.norm > 0.0;
    let nonzero = reference.elements - reference.zeros;
    let lost = status.zeros.saturating_sub(reference.zeros);
    let largest = side.half.map(|half| match half {
        FloatDType::BF16 => 2f64.powi(128),
        _ => 65520.0,
    });
    Figures {
        cosine: comparable.then(|| {
            // From what differs: two products that nearly cancel would lose the digits.
            let apart = difference.norm.powi(2) - (norm - reference.norm).powi(2);
            (1.0 - apart / (2.0 * norm * reference.norm)).clamp(-1.0, 1.0)
        }),
        norm_ratio: (finite && reference.norm > 0.0).then(|| norm / reference.norm),
        lost: match nonzero {
            0 => 0.0,
            nonzero => lost as f64 / nonzero as f64,
        },
        non_finite: status.non_finite.saturating_sub(reference.non_finite),
        headroom: largest
            .filter(|_| status.max_abs > 0.0)
            .map(|largest| (largest / status.max_abs).log2()),
        error: (finite && reference.norm > 0.0).then(|| difference.norm / reference.norm),
        zeros: status.zeros,
        error_rms: rms(difference),
    }
}

/// That of the finite values alone would pass for a small one.
pub(crate) fn finite_norm(status: &TensorStatus) -> Option<f64> {
    (status.non_finite == 0).then_some(status.norm)
}

pub(crate) fn rms(status: &TensorStatus) -> f64 {
    status.norm / (status.elements.max(1) as f64).sqrt()
}

/// Measures tensors on any devices. Waits for each device once.
pub(crate) fn measure<'a>(
    tensors: impl Iterator<Item = &'a Tensor<1>>,
) -> Result<Vec<TensorStatus>, AmpError> {
    let mut lists: Vec<(Device, TensorList, Vec<usize>)> = Vec::new();
    let mut count = 0;
    for (position, tensor) in tensors.enumerate() {
        count += 1;
        let device = tensor.device();
        let found = lists.iter().position(|(other, ..)| *other == device);
        let found = found.unwrap_or_else(|| {
            lists.push((device, TensorList::new(), Vec::new()));
            lists.len() - 1
        });
        lists[found].1.push(tensor.clone());
        lists[found].2.push(position);
    }
    let mut statuses = vec![TensorStatus::default(); count];
    for (_, list, positions) in lists {
        for (position, status) in positions.into_iter().zip(inspect(list)?.read()) {
            statuses[position] = status;
        }
    }
    Ok(statuses)
}
