//! Averages of the weights.

use crate::support::*;

fn config(momentum: f64) -> EmaConfig {
    EmaConfig::new().with_momentum(momentum)
}

fn ema(momentum: f64) -> Ema {
    config(momentum).init().unwrap()
}

fn filled(value: f32) -> Pair {
    Pair::of(value, DType::F32)
}

#[test]
fn the_first_update_takes_the_value_and_the_next_ones_average() {
    let mut ema = ema(0.75);
    assert_eq!((ema.updates(), ema.parameters()), (0, 0));
    let untouched = filled(3.0);
    assert_eq!(ema.module(&untouched).values(), [3.0; 10]);

    let mut expected = 0.0;
    for (step, value) in [4.0f32, 8.0, -2.0, 0.5].into_iter().enumerate() {
        let model = ema.update(filled(value));
        assert_eq!(model.values(), [value; 10]);
        expected = match step {
            0 => value,
            _ => 0.75 * expected + 0.25 * value,
        };
        assert_eq!(ema.module(&model).values(), [expected; 10]);
        assert_eq!(values(ema.get(&model.bias).unwrap()), [expected; 4]);
    }
    assert_eq!((ema.updates(), ema.parameters()), (4, 2));
    assert_eq!(ema.finalize(filled(9.0)).values(), [expected; 10]);
}

#[test]
fn a_copy_is_not_moved_by_what_comes_later() {
    let mut ema = ema(0.5);
    let mut model = ema.update(filled(1.0));
    let copy = ema.module(&model);
    model = ema.update(filled(3.0));
    assert_eq!(copy.values(), [1.0; 10]);
    assert_eq!(ema.module(&model).values(), [2.0; 10]);
    // A clone of the average goes its own way.
    let mut other = ema.clone();
    let _ = other.update(filled(0.0));
    assert_eq!(ema.module(&model).values(), [2.0; 10]);
    assert_eq!(other.module(&model).values(), [1.0; 10]);
}

#[test]
fn the_copy_has_ids_and_trainability_of_the_model() {
    let mut ema = ema(0.5);
    let model = ema.update(filled(1.0));
    let copy = ema.module(&model);
    assert_eq!(copy.weight.id, model.weight.id);
    assert!(copy.weight.is_require_grad());
    // And it can be trained, or evaluated without autodiff.
    let loss = copy.weight.val().sum() + copy.bias.val().sum();
    let grads = GradientsParams::from_grads(loss.backward(), &copy);
    assert_eq!(grads.len(), 2);
    let inner = copy.valid();
    assert!(!inner.weight.val().is_require_grad());
    assert_eq!(inner.values(), [1.0; 10]);
    // The average of a model without autodiff can be taken too.
    assert_eq!(ema.module(&model.valid()).values(), [1.0; 10]);
}

#[test]
fn half_precision_parameters_are_averaged_in_f32() {
    for dtype in [DType::F16, DType::BF16] {
        if !Device::default().supports_dtype(dtype) {
            continue;
        }
        let mut ema = ema(0.999);
        let mut model = ema.update(Pair::of(1.0, dtype));
        for _ in 0..1000 {
            // In f16 and bf16, 0.999 * 1 + 0.001 * 1.5 is 1.
            model = ema.update(Pair::of(1.5, dtype));
        }
        let average = ema.get(&model.weight).unwrap();
        assert_eq!(average.dtype(), DType::F32);
        let expected = 1.5 - 0.5 * 0.999f64.powi(1000);
        assert!((f64::from(values(average)[0]) - expected).abs() < 1e-4);
        let copy = ema.module(&model);
        assert_eq!(copy.weight.val().dtype(), dtype);
        assert!((f64::from(copy.values()[0]) - expected).abs() < 4e-3);
    }
    let mut ema = ema(0.5);
    let model = ema.update(Pair::of(1.0, DType::F64));
    assert_eq!(ema.get(&model.weight).unwrap().dtype(), DType::F64);
}

#[test]
fn under_mixed_precision_the_stored_f32_values_are_averaged() {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::f16();
    let model = LinearConfig::new(4, 3).init(&device);
    let mut model: Linear = model.apply_reparameterization(amp.clone());
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let mut optim = optim.with_ema(config(0.5));
    let mut expected: Vec<f32> = Vec::new();
    for step in 0..4 {
        let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
        let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.1, model, grads);
        let value = values(model.weight.base());
        expected = match step {
            0 => value,
            _ => (expected.iter().zip(value))
                .map(|(a, v)| 0.5 * a + 0.5 * v)
                .collect(),
        };
    }
    let copy = optim.ema().unwrap().module(&model);
    assert_eq!(copy.weight.base().dtype(), DType::F32);
    assert_eq!(values(copy.weight.base()), expected);
    // Still f16 inside a scope.
    amp.autocast(Tensor::<2>::ones([1, 4], &device), |x| {
        let output = copy.forward(x);
        assert_eq!(output.dtype(), DType::F16);
        output
    });
}

#[test]
fn frozen_parameters_and_running_statistics_are_the_models() {
    let device = Device::default().autodiff();
    let linear = LinearConfig::new(3, 2).init(&device).no_grad();
    let mut model: (Linear, BatchNorm) = (linear, BatchNormConfig::new(2).init(&device));
    let mut ema = ema(0.5);
    for _ in 0..3 {
        let input = Tensor::<2>::random([8, 3], Distribution::Default, &device);
        let _ = model.1.forward::<2>(model.0.forward(input));
        model = ema.update(model);
    }
    // The two trained parameters of the norm.
    assert_eq!(ema.parameters(), 2);
    assert!(ema.get(&model.0.weight).is_none());
    let mut changed = model.clone();
    changed.0.weight = changed.0.weight.map(|w| w.zeros_like());
    let copy = ema.module(&changed);
    assert_eq!(values(copy.0.weight.val()), [0.0; 6]);
    let statistics = |model: &(Linear, BatchNorm)| {
        let mut found = parameters(model);
        found.retain(|path, _| path.contains("running"));
        found
    };
    assert_eq!(statistics(&model).len(), 2);
    assert_eq!(statistics(&copy), statistics(&changed));
}

#[test]
fn a_shared_parameter_is_averaged_once() {
    let device = Device::default().autodiff();
    let tied = |value: f32| {
        let tensor = || Tensor::<1>::from_floats([value], &device).require_grad();
        [(); 2].map(|()| Param::initialized(ParamId::from(5), tensor()))
    };
    let mut ema = ema(0.75);
    let _ = ema.update(tied(0.0));
    let model = ema.update(tied(4.0));
    assert_eq!(ema.parameters(), 1);
    let copy = ema.module(&model);
    assert_eq!(copy.map(|param| values(param.val())), [[1.0]; 2]);
}

#[test]
fn parameters_are_overwritten_as_often_as_asked() {
    let config = config(0.5).with_overwrite_frequency(Some(2));
    let mut ema = config.init().unwrap();
    for (value, expected) in [(1.0, 1.0), (3.0, 2.0), (4.0, 4.0), (1.0, 2.0)] {
        assert_eq!(ema.update(filled(value)).values(), [expected; 10]);
    }
}

#[test]
fn master_weights_follow_an_overwritten_parameter() {
    let optim = masters(at_scale(16.0));
    let optim = optim.with_ema(config(0.5).with_overwrite_frequency(Some(2)));
    let mut run = Trial::new(optim).with_dtype(DType::F16);
    // The third step starts from the overwritten -1.5, the fourth ends in 0.5 * -2 + 0.5 * -3.5.
    for expected in [-1.0, -1.5, -2.5, -2.75] {
        run.step(all(1.0));
        assert_eq!(run.values(), [expected; 10]);
    }
}

#[test]
fn one_buffer_for_each_parameter_is_updated_in_place() {
    if !on_flex() {
        return;
    }
    for dtype in [DType::F16, DType::F32] {
        let mut ema = ema(0.5);
        // The first average shares the memory of an f32 parameter, which a training loop gives up then; this does not.
        let first = ema.update(Pair::of(0.0, dtype));
        let places = (1..5).map(|step| {
            let model = ema.update(Pair::of(step as f32, dtype));
            address(ema.get(&model.weight))
        });
        let mut places: Vec<_> = places.collect();
        places.dedup();
        assert_eq!(places.len(), 1, "{dtype:?}");
        assert_eq!(first.values(), [0.0; 10]);
    }
}

#[test]
fn settings_are_checked() {
    for momentum in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let error = config(momentum).init().unwrap_err();
        let expected = format!("`momentum` is {momentum}, but must be between 0 and 1");
        assert_eq!(error.to_string(), expected);
    }
    drop([0.0, 1.0].map(ema));
    let model = sgd().finalize(filled(1.0).valid());
    assert_eq!(model.values(), [1.0; 10]);
    assert_eq!(EmaConfig::default().momentum, 0.99);
}

/// A model that was built anew with other sizes, under the same ids.
#[test]
fn averages_of_another_shape_are_not_used_and_the_log_says_so() {
    let mut ema = ema(0.5);
    let model = ema.update(filled(1.0));
    let mut other = filled(3.0);
    let turned = |weight: Tensor<2>| Tensor::from_inner(weight.inner().reshape([3, 2]));
    other.weight = other.weight.map(|weight| turned(weight).require_grad());
    let logged = captured(Level::Warn, || {
        let copy = ema.module(&other).values();
        assert_eq!(copy[..6], [3.0; 6]);
        assert_eq!(copy[6..], [1.0; 4]);
    });
    says(only(&logged), ["`weight`"]);

    let logged = captured(Level::Warn, || drop(ema.update(other.clone())));
    says(only(&logged), ["`weight`", "the average starts again"]);
    let copy = ema.module(&other).values();
    assert_eq!((copy[0], copy[6]), (3.0, 2.0));
    assert_eq!(captured(Level::Warn, || drop(ema.update(other))), [""; 0]);
    assert_eq!(model.values(), [1.0; 10]);
}

/// A step without gradients is a step, to the optimizer and to the averages; so is one without parameters.
#[test]
fn every_step_that_was_not_skipped_is_an_update() {
    let mut run = Trial::new(sgd().with_ema(config(0.5)));
    let average = |run: &Trial| run.optim.finalize(filled(0.0)).values()[0];
    run.step(all(2.0));
    run.step(all(2.0));
    assert_eq!(average(&run), -3.0);
    run.take_plain(GradientsParams::new());
    assert_eq!((average(&run), run.values()[0]), (-3.5, -4.0));
    assert_eq!(run.optim.ema().unwrap().updates(), 3);

    let mut ema = ema(0.5);
    ema.update(run.model.no_grad());
    assert_eq!((ema.updates(), ema.parameters()), (1, 0));
}

/// Averages of another model, say because its parameters got new ids.
#[test]
fn averages_that_match_no_parameter_are_told_of() {
    let mut donor = ema(0.5);
    donor.update(filled(1.0));
    let stored = donor.to_record();
    let device = Device::default().autodiff();
    let other = LinearConfig::new(2, 3).init(&device);
    let mut loaded = ema(0.5);
    loaded.load_record(stored.clone()).unwrap();
    let messages = captured(Level::Warn, || drop(loaded.module(&other)));
    says(only(&messages), ["none of the 2 averages"]);

    let messages = captured(Level::Warn, || {
        let other = loaded.update(other.clone());
        loaded.update(other);
    });
    says(only(&messages), ["2 of the 2 averages"]);

    // Nothing is said of averages that fit, or of none at all.
    let messages = captured(Level::Warn, || {
        let mut ema = ema(0.5);
        drop(ema.module(&other));
        ema.load_record(stored).unwrap();
        let pair = ema.update(filled(2.0));
        drop(ema.finalize(pair));
    });
    assert!(messages.is_empty(), "{messages:?}");
}

/// Updates that f16 parameters lose are in the masters, and in their average: whoever keeps the masters.
#[test]
fn with_master_weights_the_masters_are_averaged() {
    fn run<O: ModuleOptim>(optim: O, dtype: DType) -> [Vec<f32>; 2] {
        let scaler = at_scale(1.0).with_dynamic(false).init().unwrap();
        let optim = ScaledOptimizer::new(optim, scaler).with_ema(config(0.5));
        let (mut optim, mut model) = (optim, Pair::of(1.0, dtype));
        for _ in 0..3 {
            let grads = model.gradients(all(1.0), 1.0);
            model = optim.step(1e-4, model, grads);
        }
        let ema = optim.ema().unwrap();
        [
            values(ema.get(&model.weight).unwrap()),
            values(ema.get(&model.bias).unwrap()),
        ]
    }
    let sgd = SgdConfig::new;
    let masters = |dtype| run(MasterWeights::new(sgd().build()), dtype);
    let fused = |dtype| run(FusedSgd::new(sgd()), dtype);
    let expected = masters(DType::F32);
    assert!(expected[0][0] < 1.0 - 2e-4);
    for found in [masters(DType::F16), fused(DType::F32), fused(DType::F16)] {
        assert_eq!(found, expected);
    }
}
