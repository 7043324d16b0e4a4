//! Parameters, gradients and outputs as numbers.

use burn_amp_tests::{prelude::*, values};

/// Path, stored values and trainability of every parameter; all must be stored in f32.
pub fn parameters<M: Module>(module: &M) -> Vec<(String, Vec<f32>, bool)> {
    let mut walk = Walk::default();
    module.visit(&mut walk);
    walk.parameters
}

/// Path and values of every gradient; all must be in f32.
pub fn gradients<M: Module>(grads: &GradientsParams, module: &M) -> Vec<(String, Vec<f32>)> {
    let mut walk = Walk {
        grads: Some(grads),
        ..Walk::default()
    };
    module.visit(&mut walk);
    walk.gradients
}

/// The largest difference, relative to the largest magnitude.
pub fn relative_error(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let error = |(a, b): (&f32, &f32)| (a - b).abs();
    let largest = expected.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
    let errors = actual.iter().zip(expected).map(error);
    // `f32::max` would drop a NaN.
    let worse = |max: f32, e: f32| if max.is_nan() || e <= max { max } else { e };
    errors.fold(0.0, worse) / largest
}

#[derive(Default)]
struct Walk<'a> {
    grads: Option<&'a GradientsParams>,
    path: Vec<String>,
    parameters: Vec<(String, Vec<f32>, bool)>,
    gradients: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Walk<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let base = param.base();
        assert_eq!(base.dtype(), DType::F32, "{path}");
        if let Some(grad) = self.grads.and_then(|grads| grads.get::<D>(param.id)) {
            assert_eq!(grad.dtype(), DType::F32, "{path}");
            self.gradients.push((path.clone(), values(grad)));
        }
        let trainable = base.is_require_grad();
        self.parameters.push((path, values(base), trainable));
    }
}
