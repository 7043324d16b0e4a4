//! What steps, unscaling and clipping cost on a CubeCL device: launches and reads.
//!
//! The observer sees every launch of the process: one test at a time.

#[path = "../../kernels-cubecl/tests/backend/alone.rs"]
mod alone;
#[path = "../../kernels-cubecl/benches/gradients/launches.rs"]
mod launches;

use alone::{GPT2, alone, cube, drain, most_launches};
use burn_amp_tests::prelude::*;
use cubecl::MemoryScope;
use launches::names;
use std::thread;

/// Bytes of the largest read of wgpu's: CubeCL has memory for that, for each thread its own. None elsewhere.
fn largest_read(device: &Device, scope: MemoryScope) -> Option<u64> {
    let cube = cube(device).expect("one of CubeCL's");
    if !matches!(cube, cubecl::Device::Wgpu(_)) {
        return None;
    }
    let report = cube.client().memory_report(scope);
    let memories = report.streams.iter().flat_map(|stream| &stream.auxiliary);
    let staging = memories.filter(|memory| memory.name.contains("Staging"));
    let pools = staging.flat_map(|memory| &memory.pools.dynamic);
    Some(pools.map(|pool| pool.largest_alloc).max().unwrap_or(0))
}

type Weights = Vec<Param<Tensor<2>>>;

/// As many parameters as GPT-2 124M has.
fn weights(dtype: DType, device: &Device) -> Weights {
    let value = |index: usize| Tensor::ones([4 + index % 3, 48], (device, dtype));
    let values = (0..GPT2).map(|index| Param::from_tensor(value(index)));
    values.collect()
}

fn gradients(weights: &Weights) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for param in weights {
        let tensor = param.val().inner();
        grads.register(param.id, Tensor::full_like(&tensor, 8.0));
    }
    grads
}

fn unscaled(weights: &Weights, scaler: &GradScaler) -> UnscaledGradients {
    let scaled = scaled_by_hand(scaler, gradients(weights));
    scaler.unscale(scaled, weights).unwrap()
}

fn scaler(own_dtype: bool) -> GradScaler {
    let config = at_scale(8.0).with_parameter_dtype_gradients(own_dtype);
    GradScaler::new(config).unwrap()
}

#[test]
fn clipping_by_a_global_norm_is_a_few_launches() {
    let _alone = alone();
    let device = Device::default();
    let weights = weights(DType::F32, &device);
    let grads = unscaled(&weights, &scaler(false));
    let norm = grads.status().norm();
    drain(&device);
    let (grads, seen) = names(|| {
        let grads = grads.clip(&GradientClip::GlobalNorm(norm / 4.0)).unwrap();
        drain(&device);
        grads
    });
    assert_eq!(grads.status().clipped(), Some(GPT2));
    let range = 1..=most_launches(7) + 1;
    assert!(range.contains(&seen.len()), "{} launches", seen.len());
    for param in &weights {
        let values = values(grads.get::<2>(param.id).unwrap());
        assert!(values.iter().all(|value| (value - 0.25).abs() < 1e-6));
    }
}

/// One in-place pass: no casts, and no second measure.
#[test]
fn gradients_that_keep_their_dtype_take_one_pass() {
    let _alone = alone();
    let device = Device::default();
    if !device.supports_dtype(DType::F16) {
        return skipped("no f16");
    }
    let weights = weights(DType::F16, &device);
    let scaler = scaler(true);
    // Compiled, and read once.
    drop(unscaled(&weights, &scaler));
    let scaled = scaled_by_hand(&scaler, gradients(&weights));
    drain(&device);
    let (grads, seen) = names(|| scaler.unscale(scaled, &weights).unwrap());
    let is_ours = |name: &&str| name.contains("burn_amp_kernels");
    assert!(seen.iter().all(is_ours), "{seen:?}");
    assert!(seen.len() <= most_launches(7) + 1, "{seen:?}");
    let grad = grads.get::<2>(weights[0].id).unwrap();
    assert_eq!(grad.dtype(), DType::F16);
    assert_eq!(grads.status().max_abs(), 1.0);
}

/// Nor where the scale is taken back, nor for a step that is skipped: until somebody waits, and then another thread does it.
#[test]
fn a_step_that_nobody_waits_for_reads_nothing() {
    let _alone = alone();
    let device = Device::default().autodiff();
    if !device.supports_dtype(DType::F16) {
        return skipped("no f16");
    }
    let amp = MixedPrecision::f16();
    // A thread that has read nothing before.
    let stepping = thread::spawn(move || {
        let inner = device.clone().inner();
        let read = || largest_read(&inner, MemoryScope::CurrentStream);
        let linear = LinearConfig::new(4, 2).init(&device);
        let adam = FusedAdam::new(AdamConfig::new());
        let mut run = Player::with(adam, linear, &amp);
        let before = read();
        for step in 0..10 {
            let output = amp.autocast(Tensor::<2>::ones([3, 4], &device), |x| run.model.forward(x));
            run.train(0.1, output.mean() * if step == 4 { 1e9 } else { 1.0 });
            assert_eq!(read(), before, "step {step}");
        }
        run.optim.synchronize().unwrap();
        assert_eq!(read(), before, "when somebody waits");
        assert_eq!((run.counters().steps(), run.counters().skipped()), (10, 1));
        // A read is seen.
        values(run.model.weight.base().clone());
        assert!(before.is_none() || before < read(), "{before:?}");
    });
    stepping.join().unwrap();
}

/// All devices have their work before the first of them is waited for. Fusion would launch the second's when it is read.
#[test]
#[cfg(feature = "wgpu")]
fn a_device_starts_before_another_is_read() {
    use burn::tensor::DeviceKind::{Cpu, DefaultDevice};

    let _alone = alone();
    // Another device than that of the tests before, which have read it.
    let [first, second] = [Cpu, DefaultDevice].map(Device::wgpu);
    let value = |device| Param::from_tensor(Tensor::ones([4, 48], device));
    let weights = vec![value(&first), value(&second)];
    let scaler = scaler(false);
    let scaled = scaled_by_hand(&scaler, gradients(&weights));
    drain(&first);
    drain(&second);

    // What was read of it at each launch.
    let device = first.clone();
    let read = move |kernel: &str| {
        let ours = kernel.contains("burn_amp_kernels");
        ours.then(|| largest_read(&device, MemoryScope::Device))
    };
    let (grads, seen) = launches::observe(read, || scaler.unscale(scaled, &weights).unwrap());
    let seen: Vec<_> = seen.into_iter().flatten().collect();
    assert_eq!(grads.status().max_abs(), 1.0);
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(seen.iter().all(|read| *read == seen[0]), "{seen:?}");
    let now = largest_read(&first, MemoryScope::Device);
    assert!(now > seen[0], "{now:?} {seen:?}");
}
