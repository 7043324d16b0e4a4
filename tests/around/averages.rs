//! Averages of the weights: dtypes, memory, frozen, shared and foreign parameters. Which steps update them, and their records, `tests/oracle` draws.

use crate::support::*;

fn config(momentum: f64) -> EmaConfig {
    EmaConfig::new().with_momentum(momentum)
}

fn ema(momentum: f64) -> Ema {
    config(momentum).init().unwrap()
}

fn of(value: f64, dtype: DType) -> Pair {
    Pair::new([value; 10], &device(), dtype)
}

/// It has ids and trainability of the model, and is not moved by what comes later. A clone of the average goes its own way.
#[test]
fn a_copy_is_a_model_of_its_own() {
    let mut ema = ema(0.5);
    let model = ema.update(Pair::of(1.0));
    let (copy, mut other) = (ema.module(&model), ema.clone());
    ema.update(Pair::of(3.0));
    other.update(Pair::of(0.0));
    // That of a model without autodiff can be taken too.
    for (ema, average) in [(ema, 2.0), (other, 0.5)] {
        assert_eq!(ema.module(&model).values(), [average; 10]);
        assert_eq!(ema.module(&model.valid()).values(), [average; 10]);
    }
    assert_eq!(copy.weight.id, model.weight.id);
    let loss = copy.weight.val().sum() + copy.bias.val().sum();
    let grads = GradientsParams::from_grads(loss.backward(), &copy);
    assert_eq!(grads.len(), 2);
    let inner = copy.valid();
    assert!(!inner.weight.val().is_require_grad());
    assert_eq!(inner.values(), [1.0; 10]);
}

/// The average of 1 and the next value of a dtype is none of that dtype. A copy of f32 values is f16 inside a scope.
#[test]
fn half_precision_parameters_are_averaged_in_f32() {
    for (dtype, of_average, digits) in [
        (DType::F16, DType::F32, 10),
        (DType::BF16, DType::F32, 7),
        (DType::F64, DType::F64, 40),
    ] {
        if !Device::default().supports_dtype(dtype) {
            skipped(&format!("the device has no {dtype:?}"));
            continue;
        }
        let mut ema = ema(0.5);
        ema.update(of(1.0, dtype));
        let model = ema.update(of(1.0 + 0.5f64.powi(digits), dtype));
        let average = ema.get(&model.weight).unwrap();
        assert_eq!(average.dtype(), of_average);
        let found = average.into_data().iter::<f64>().next();
        assert_eq!(found, Some(1.0 + 0.5f64.powi(digits + 1)));
        assert_eq!(ema.module(&model).weight.val().dtype(), dtype);
    }
    let (amp, mut ema) = (MixedPrecision::f16(), ema(0.5));
    let model = ema.update(amp.attach(Pair::of(1.0 + 0.5f64.powi(13))));
    let copy = ema.module(&model);
    assert_eq!(copy.values(), [1.0 + 0.5f64.powi(13); 10]);
    amp.autocast((), |()| assert_eq!(copy.bias.val().dtype(), DType::F16));
}

#[test]
fn frozen_parameters_and_running_statistics_are_the_models() {
    let linear = LinearConfig::new(3, 2).init(&device()).no_grad();
    let norm = BatchNormConfig::new(2).init(&device());
    let mut model: (Linear, BatchNorm) = (linear, norm);
    let mut ema = ema(0.5);
    for step in 0..3 {
        let _ = (model.1).forward::<2>(model.0.forward(random(step, [8, 3], &device())));
        model = ema.update(model);
    }
    // The two trained parameters of the norm.
    assert_eq!(ema.parameters(), 2);
    assert!(ema.get(&model.0.weight).is_none());
    let mut changed = model.clone();
    changed.0.weight = changed.0.weight.map(|w| w.zeros_like());
    // What is trained is the same in all steps.
    let expected = parameters(&changed);
    assert!(expected.contains_key("1.running_mean"), "{expected:?}");
    assert_eq!(parameters(&ema.module(&changed)), expected);
    // Frozen later, too: an average that nothing adds to would fall behind. It is an update all the same.
    let frozen = ema.update(model.no_grad());
    assert_eq!((ema.updates(), ema.parameters()), (4, 0));
    assert_eq!(AmpRecord::from_bytes(ema.bits()).unwrap().averages(), 0);
    ema.from_bytes(ema.bits()).unwrap();
    assert_eq!(parameters(&ema.module(&frozen)), parameters(&frozen));
}

/// Who decides the step does not matter.
#[test]
fn a_skipped_step_leaves_the_average_of_a_frozen_parameter() {
    let amp = MixedPrecision::f32().with_scaler(at_scale(2.0)).unwrap();
    let linears = [(); 2].map(|()| LinearConfig::new(3, 2).init(&device()));
    let (mut model, optim) = amp.prepare(linears, FusedSgd::new(SgdConfig::new()));
    let mut optim = optim.with_ema(config(0.5));
    for (factor, averages) in [(1.0, 4), (f64::INFINITY, 4), (1.0, 2)] {
        let loss = (model[1].weight.val() * factor).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1.0, model, grads);
        optim.synchronize().unwrap();
        assert_eq!(optim.ema().unwrap().parameters(), averages, "{factor}");
        model[0] = model[0].clone().no_grad();
    }
}

#[test]
fn a_shared_parameter_is_averaged_once() {
    let (mut ema, tied) = (ema(0.75), |value| [Pair::of(value), Pair::of(value)]);
    ema.update(tied(0.0));
    let model = ema.update(tied(4.0));
    assert_eq!(ema.parameters(), 2);
    let copy = ema.module(&model);
    assert_eq!(copy.map(|pair| pair.values()), [[1.0; 10]; 2]);
}

/// The third step starts from the overwritten -1.5, the fourth ends in 0.5 * -2 + 0.5 * -3.5. Such steps are not the device's.
#[test]
fn master_weights_follow_an_overwritten_parameter() {
    fn check<O: ModuleOptim>(optim: O) {
        let mut run = Trial::at_border_with(optim, &f16_under(at_scale(16.0)));
        let often = config(0.5).with_overwrite_frequency(Some(2));
        run.optim = run.optim.with_ema(often);
        run = run.with_dtype(DType::F16);
        for expected in [-1.0, -1.5, -2.5, -2.75] {
            run.take(run.model.plain(ONES));
            assert_eq!(run.values(), [expected; 10]);
        }
    }
    check(masters());
    check(FusedSgd::new(SgdConfig::new()));
}

/// Updates that f16 parameters lose are in the masters, and in their average: whoever keeps the masters.
#[test]
fn with_master_weights_the_masters_are_averaged() {
    fn run<O: ModuleOptim>(optim: O, dtype: DType) -> Vec<f32> {
        let optim = under(at_scale(1.0).with_dynamic(false), optim);
        let mut run = Trial::new(optim.with_ema(config(0.5)));
        run.model = of(1.0, dtype);
        for _ in 0..3 {
            run.model = run.optim.step(1e-4, run.model.clone(), run.scaled(ONES));
        }
        let ema = run.optim.ema().unwrap();
        let weight = values(ema.get(&run.model.weight).unwrap());
        [weight, values(ema.get(&run.model.bias).unwrap())].concat()
    }
    let fused = |dtype| run(FusedSgd::new(SgdConfig::new()), dtype);
    let expected = run(masters(), DType::F32);
    assert!(expected[0] < 1.0 - 2e-4);
    for found in [
        run(masters(), DType::F16),
        fused(DType::F32),
        fused(DType::F16),
    ] {
        assert_eq!(found, expected);
    }
}

#[test]
fn one_buffer_for_each_parameter_is_updated_in_place() {
    if !on_flex() {
        return skipped("its memory cannot be looked at");
    }
    for dtype in [DType::F16, DType::F32] {
        let mut ema = ema(0.5);
        // The first average shares the memory of an f32 parameter, which a training loop gives up then; this does not.
        let first = ema.update(of(0.0, dtype));
        let places = [1.0, 2.0, 3.0, 4.0].map(|value| {
            let model = ema.update(of(value, dtype));
            address(ema.get(&model.weight))
        });
        assert_eq!(places, [places[0]; 4], "{dtype:?}");
        assert_eq!(first.values(), [0.0; 10]);
    }
}

/// A model that was built anew with other sizes, under the same ids.
#[test]
fn averages_of_another_shape_are_not_used_and_the_log_says_so() {
    let mut ema = ema(0.5);
    let model = ema.update(Pair::of(1.0));
    let mut other = Pair::of(3.0);
    let turned = |weight: Tensor<2>| Tensor::from_inner(weight.inner().reshape([3, 2]));
    other.weight = other.weight.map(|weight| turned(weight).require_grad());
    let copy = |ema: &Ema| {
        let values = ema.module(&other).values();
        (values[0], values[6])
    };
    warns_once(["`weight`"], || assert_eq!(copy(&ema), (3.0, 1.0)));
    let parts = ["`weight`", "the average starts again"];
    warns_once(parts, || drop(ema.update(other.clone())));
    assert_eq!(copy(&ema), (3.0, 2.0));
    no_warning(|| drop(ema.update(other.clone())));
    assert_eq!(model.values(), [1.0; 10]);
}

/// Averages of another model, say because its parameters got new ids. No record has them from the first update on.
#[test]
fn averages_that_match_no_parameter_are_warned_of() {
    let mut donor = ema(0.5);
    donor.update(Pair::of(1.0));
    let stored = donor.to_record();
    let other = LinearConfig::new(2, 3).init(&device());
    let mut loaded = ema(0.5);
    loaded.load_record(stored.clone()).unwrap();
    warns_once(["none of the 2 averages"], || drop(loaded.module(&other)));

    warns_once(["2 of the 2 averages"], || {
        let other = loaded.update(other.clone());
        assert_eq!((loaded.updates(), loaded.parameters()), (2, 2));
        loaded.update(other);
    });

    // Nothing is said of averages that fit, or of none at all.
    no_warning(|| {
        let mut ema = ema(0.5);
        drop(ema.module(&other));
        ema.load_record(stored).unwrap();
        let pair = ema.update(Pair::of(2.0));
        drop(ema.finalize(pair));
    });
}
