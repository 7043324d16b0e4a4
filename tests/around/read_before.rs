//! What was read, or put into a record, before a step is what it was. On CubeCL devices a read is done when the values are looked
//! at, so that a step in place would show in it.

use crate::support::*;

const WEIGHT: [f32; 6] = [0.3, -0.4, 1.2, 0.5, -2.5, 0.7];
const BIAS: [f32; 4] = [-0.1, 0.2, 3.0, -0.6];
const GRADIENTS: Values = (WEIGHT, BIAS);

fn trial<O: ModuleOptim>(optim: O, dtype: DType) -> Trial<O> {
    let optim = ScaledOptimizer::new(optim, at_scale(16.0).init().unwrap());
    let optim = optim.with_accumulation(2);
    let optim = optim.with_ema(EmaConfig::new().with_momentum(0.5));
    Trial::new(optim).with_dtype(dtype)
}

impl<O: ModuleOptim> Trial<O> {
    fn micro_batches(&mut self, count: usize) {
        (0..count).for_each(|_| self.step(GRADIENTS));
    }
}

fn bytes(record: AmpRecord) -> Pack {
    pack(record.into_bytes().unwrap())
}

/// Moments, masters, an open window, averages: all of a record.
fn a_record_stays<O: ModuleOptim>(optim: O, dtype: DType) -> Trial<O> {
    let mut run = trial(optim, dtype);
    run.micro_batches(3);
    let before = run.record();
    let record = run.optim.to_record();
    run.micro_batches(4);
    assert!(run.record() != before);
    assert!(bytes(record) == before, "the record has changed");
    assert_eq!(run.model.weight.val().dtype(), dtype);
    run
}

fn masters() -> MasterWeights {
    MasterWeights::new(AdamConfig::new().build())
}

#[test]
fn masters_of_f16_parameters() {
    let mut run = a_record_stays(masters(), DType::F16);
    // Nor does that of the optimizer by itself.
    let inner = |run: &Trial<_>| ModuleOptim::to_record(run.optim.optimizer()).unwrap();
    let pack = |record: OptimizerRecord| pack(record.into_bytes().unwrap());
    let (before, record) = (pack(inner(&run)), inner(&run));
    run.micro_batches(4);
    assert!(pack(record) == before);
    assert!(pack(inner(&run)) != before);
}

#[test]
fn masters_of_f32_parameters_and_moments() {
    a_record_stays(masters(), DType::F32);
    a_record_stays(AdamConfig::new().init(), DType::F32);
}

/// Adds micro-batches to a window that stays open.
fn accumulate(scaler: &mut GradScaler, window: &mut AccumulationWindow, model: &Pair) {
    let grads = model.gradients(GRADIENTS, 65536.0);
    let full = scaler.accumulate(window, grads, model).unwrap();
    assert!(full.is_none());
}

fn open() -> (GradScaler, AccumulationWindow, Pair) {
    let scaler = GradScalerConfig::new().init().unwrap();
    let window = AccumulationConfig::new(9).init().unwrap();
    (scaler, window, Pair::zeros(DType::F32))
}

#[test]
fn a_window_and_averages_of_their_own() {
    let (mut scaler, mut window, model) = open();
    let mut ema = EmaConfig::new().with_momentum(0.5).init().unwrap();
    let full = Pair::new(WEIGHT.to_vec(), BIAS.to_vec(), DType::F32);
    let other = Pair::of(9.0, DType::F32);
    let mut go_on = |window: &mut AccumulationWindow, ema: &mut Ema| {
        accumulate(&mut scaler, window, &model);
        accumulate(&mut scaler, window, &model);
        ema.update(full.clone());
        ema.update(other.clone());
    };
    go_on(&mut window, &mut ema);
    let before = [window.to_record(), ema.to_record()].map(bytes);
    let records = [window.to_record(), ema.to_record()];
    go_on(&mut window, &mut ema);
    assert!(records.map(bytes) == before);
}

/// The model that a run goes on with is not that of a record either.
#[test]
fn parameters_in_half_precision() {
    let mut run = trial(masters(), DType::F32);
    run.model = to_half(run.model, FloatDType::F16, &[]);
    run.micro_batches(2);
    let copy = run.model.clone();
    let before = copy.values();
    run.micro_batches(2);
    assert_eq!(copy.values(), before);
}

/// A sum that was read from an open window is not added to.
#[test]
fn a_sum_that_was_read_stays() {
    let (mut scaler, mut window, model) = open();
    for count in 1..4 {
        accumulate(&mut scaler, &mut window, &model);
        let sum = window.sum(&model.bias).unwrap();
        let read = sum.to_data();
        // Under fusion Burn adds the sums, and changes what it has read itself: until then, the handle keeps it.
        let held = cfg!(feature = "fusion").then_some(sum);
        accumulate(&mut scaler, &mut window.clone(), &model);
        let expected = count as f32 * 3.0 * 65536.0;
        assert_eq!(read.as_slice::<f32>().unwrap()[2], expected);
        drop(held);
    }
}
