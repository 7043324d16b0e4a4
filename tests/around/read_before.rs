//! What was read, or put into a record, before a step is what it was. On CubeCL devices a read is done when the values are looked
//! at, so that a step in place would show in it.

use burn_amp_tests::prelude::*;

use crate::support::{Pack, Pair, pack};

const WEIGHT: [f32; 6] = [0.3, -0.4, 1.2, 0.5, -2.5, 0.7];
const BIAS: [f32; 4] = [-0.1, 0.2, 3.0, -0.6];

fn scaled<O: ModuleOptim>(optim: O) -> ScaledOptimizer<O> {
    let scaler = GradScalerConfig::new().with_init_scale(16.0);
    ScaledOptimizer::new(optim, scaler.init().unwrap())
        .with_accumulation(2)
        .unwrap()
        .with_ema(EmaConfig::new().with_momentum(0.5))
        .unwrap()
}

fn micro_batches<O: ModuleOptim>(
    optim: &mut ScaledOptimizer<O>,
    mut model: Pair,
    count: usize,
) -> Pair {
    for _ in 0..count {
        let grads = model.gradients(WEIGHT, BIAS, optim.scaler().loss_scale());
        model = optim.step(0.125, model, grads);
    }
    model
}

fn bytes(record: AmpRecord) -> Pack {
    pack(record.into_bytes().unwrap())
}

/// Moments, masters, an open window, averages: all of a record.
fn a_record_stays<O: ModuleOptim>(optim: O, dtype: DType) -> ScaledOptimizer<O> {
    let mut optim = scaled(optim);
    let model = micro_batches(&mut optim, Pair::zeros(dtype), 3);
    let before = bytes(optim.to_record());
    let record = optim.to_record();
    let model = micro_batches(&mut optim, model, 4);
    let after = bytes(optim.to_record());
    assert!(after != before);
    assert!(
        bytes(record) == before,
        "the record of before the steps has changed"
    );
    assert_eq!(model.weight.val().dtype(), dtype);
    optim
}

#[test]
fn masters() {
    let mut optim = a_record_stays(MasterWeights::new(AdamConfig::new().build()), DType::F16);
    // Nor does that of the optimizer by itself.
    let inner = |optim: &ScaledOptimizer<MasterWeights>| optim.optimizer().to_record().unwrap();
    let before = pack(inner(&optim).into_bytes().unwrap());
    let record = inner(&optim);
    micro_batches(&mut optim, Pair::zeros(DType::F16), 4);
    assert!(pack(record.into_bytes().unwrap()) == before);
    assert!(pack(inner(&optim).into_bytes().unwrap()) != before);
}

#[test]
fn masters_of_f32_parameters() {
    a_record_stays(MasterWeights::new(AdamConfig::new().build()), DType::F32);
}

#[test]
fn moments() {
    a_record_stays(AdamConfig::new().init(), DType::F32);
}

#[test]
fn a_window_and_averages_of_their_own() {
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut window = AccumulationConfig::new(9).init().unwrap();
    let mut ema = EmaConfig::new().with_momentum(0.5).init().unwrap();
    let model = Pair::zeros(DType::F32);
    let one = |scaler: &mut burn_amp::GradScaler, window: &mut burn_amp::AccumulationWindow| {
        let grads = model.gradients(WEIGHT, BIAS, scaler.loss_scale());
        assert!(scaler.accumulate(window, grads, &model).unwrap().is_none());
    };
    one(&mut scaler, &mut window);
    one(&mut scaler, &mut window);
    let full = Pair::new(WEIGHT.to_vec(), BIAS.to_vec(), DType::F32);
    let other = Pair::new(vec![9.0; 6], vec![9.0; 4], DType::F32);
    ema.update(full.clone());
    ema.update(other.clone());

    let before = (bytes(window.to_record()), bytes(ema.to_record()));
    let records = (window.to_record(), ema.to_record());
    one(&mut scaler, &mut window);
    ema.update(full);
    ema.update(other);
    assert!(bytes(records.0) == before.0);
    assert!(bytes(records.1) == before.1);
}

/// The model that a run goes on with is not that of a record either.
#[test]
fn parameters_in_half_precision() {
    let model = to_half(Pair::zeros(DType::F32), FloatDType::F16, &[]);
    let mut optim = scaled(MasterWeights::new(AdamConfig::new().build()));
    let model = micro_batches(&mut optim, model, 2);
    let copy = model.clone();
    let before = copy.values();
    micro_batches(&mut optim, model, 2);
    assert_eq!(copy.values(), before);
}

/// A gradient that was read is not overwritten by unscaling, looked at or not.
#[test]
fn a_gradient_that_was_read_stays() {
    let model = Pair::zeros(DType::F32);
    let scaler = GradScalerConfig::new().with_init_scale(16.0);
    let scaler = scaler.init().unwrap();
    for look in [true, false] {
        let grads = model.gradients(WEIGHT, BIAS, 16.0);
        let raw = grads.params().get::<1>(model.bias.id).unwrap().into_data();
        if look {
            assert_eq!(raw.as_slice::<f32>().unwrap()[2], 48.0);
        }
        let unscaled = scaler.unscale(grads, &model).unwrap();
        assert_eq!(unscaled.status().max_abs(), 3.0);
        assert_eq!(raw.as_slice::<f32>().unwrap()[2], 48.0);
    }
}

/// Nor is a sum that was read from an open window.
#[test]
fn a_sum_that_was_read_stays() {
    let model = Pair::zeros(DType::F32);
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut window = AccumulationConfig::new(9).init().unwrap();
    for count in 1..4 {
        let grads = model.gradients(WEIGHT, BIAS, 65536.0);
        assert!(
            scaler
                .accumulate(&mut window, grads, &model)
                .unwrap()
                .is_none()
        );
        let sum = window.sum(&model.bias).unwrap();
        let read = sum.to_data();
        // Under fusion Burn adds the sums, and changes what it has read itself: until then, the handle keeps it.
        let held = cfg!(feature = "fusion").then_some(sum);
        let grads = model.gradients(WEIGHT, BIAS, 65536.0);
        assert!(
            scaler
                .accumulate(&mut window.clone(), grads, &model)
                .unwrap()
                .is_none()
        );
        assert_eq!(
            read.as_slice::<f32>().unwrap()[2],
            count as f32 * 3.0 * 65536.0
        );
        drop(held);
    }
}
