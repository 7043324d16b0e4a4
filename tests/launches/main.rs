//! What unscaling and clipping cost on a CubeCL device: launches.
//!
//! The observer hears of every launch of the process: one test at a time.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{DType, Device, Tensor},
};
use burn_amp::{GradScaler, GradScalerConfig, GradientClip, UnscaledGradients};
use cubecl::logging::{LaunchObservation, LaunchObserver};
use std::sync::{Arc, Mutex, MutexGuard};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// The launches of a device, by name.
#[derive(Default)]
struct Launches(Mutex<Vec<&'static str>>);

impl LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap().push(kernel);
    }
}

fn launches<T>(work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let launches = Arc::new(Launches::default());
    let watching = LaunchObservation::new(launches.clone());
    let result = work();
    drop(watching);
    let seen = std::mem::take(&mut *launches.0.lock().unwrap());
    (result, seen)
}

/// As many parameters as GPT-2 124M has.
#[derive(Module, Debug)]
struct Weights {
    values: Vec<Param<Tensor<2>>>,
}

impl Weights {
    fn new(dtype: DType, device: &Device) -> Self {
        let value = |index: usize| Tensor::ones([4 + index % 3, 48], (device, dtype));
        let values = (0..148).map(|index| Param::from_tensor(value(index)));
        Self {
            values: values.collect(),
        }
    }

    fn gradients(&self, value: f64) -> GradientsParams {
        let mut grads = GradientsParams::new();
        for param in &self.values {
            let tensor = param.val().inner();
            grads.register(param.id, Tensor::full_like(&tensor, value));
        }
        grads
    }

    fn unscaled(&self, scaler: &GradScaler, value: f64) -> UnscaledGradients {
        scaler.scale(());
        scaler.unscale(scaler.scaled(self.gradients(value)), self)
    }
}

fn scaler(own_dtype: bool) -> GradScaler {
    let config = GradScalerConfig::new()
        .with_init_scale(8.0)
        .with_parameter_dtype_gradients(own_dtype);
    config.init().unwrap()
}

fn settle(device: &Device) {
    device.sync().expect("the device is well");
}

#[test]
fn clipping_by_a_global_norm_is_a_few_launches() {
    let _alone = alone();
    let device = Device::default();
    let weights = Weights::new(DType::F32, &device);
    let grads = weights.unscaled(&scaler(false), 8.0);
    let norm = grads.status().norm();
    settle(&device);
    let (grads, seen) = launches(|| {
        let grads = grads.clip(&GradientClip::GlobalNorm(norm / 4.0));
        settle(&device);
        grads
    });
    assert_eq!(grads.status().clipped(), Some(148));
    assert!((1..=8).contains(&seen.len()), "{} launches", seen.len());
    for param in &weights.values {
        let grad = grads.get::<2>(param.id).unwrap();
        let values: Vec<f32> = grad.into_data().iter().collect();
        assert!(values.iter().all(|value| (value - 0.25).abs() < 1e-6));
    }
}

/// One in-place pass: no casts, and no second measure.
#[test]
fn gradients_that_keep_their_dtype_take_one_pass() {
    let _alone = alone();
    let device = Device::default();
    if !device.supports_dtype(DType::F16) {
        return;
    }
    let weights = Weights::new(DType::F16, &device);
    let scaler = scaler(true);
    // Compiled, and read once.
    drop(weights.unscaled(&scaler, 8.0));
    scaler.scale(());
    let scaled = scaler.scaled(weights.gradients(8.0));
    settle(&device);
    let (grads, seen) = launches(|| scaler.unscale(scaled, &weights));
    assert!(
        seen.iter().all(|name| name.contains("burn_amp_kernels")),
        "{seen:?}"
    );
    assert!(seen.len() <= 8, "{seen:?}");
    let grad = grads.get::<2>(weights.values[0].id).unwrap();
    assert_eq!(grad.dtype(), DType::F16);
    assert_eq!(grads.status().max_abs(), 1.0);
}
