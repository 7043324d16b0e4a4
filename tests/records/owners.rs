//! State of another model: other parameters have other ids.

use crate::support::*;

/// The same model with other ids.
fn other(weight: u64, bias: u64) -> Small {
    let mut small = Small::new(DType::F32);
    small.weight.id = ParamId::from(weight);
    small.bias.id = ParamId::from(bias);
    small
}

/// All ids unknown, or one of two.
#[test]
fn a_window_of_another_model_stays_as_it_is() {
    for stranger in [other(1, 2), other(1001, 2), other(1, 1002)] {
        let small = Small::new(DType::F32);
        let config = AccumulationConfig::new(3);
        let mut optim = adam().with_accumulation(config);
        let grads = |step| small.gradients(step, 1.0, false);
        for step in 0..2 {
            optim.step(0.1, small.clone(), grads(step));
        }
        let before = contents(&mut optim);
        let parameters_before = parameters(&stranger);

        let flushed = optim.clone().try_flush(0.1, stranger.clone()).unwrap_err();
        let of_its_own = stranger.gradients(2, 1.0, false);
        let stepped = optim
            .try_step(0.1, stranger.clone(), of_its_own)
            .unwrap_err();
        for error in [flushed.error, stepped.error] {
            is_error(&error, "ForeignRecord", ["of its 2 sums"]);
        }
        assert_eq!(contents(&mut optim), before);
        assert_eq!(parameters(&stranger), parameters_before);
        // The model that it belongs to goes on.
        let stepped = optim.step(0.1, small.clone(), grads(2));
        assert_ne!(parameters(&stepped), parameters(&small));
    }
}

#[test]
fn by_the_scaler_itself() {
    let small = Small::new(DType::F32);
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut window = AccumulationConfig::new(3).init().unwrap();
    let grads = small.gradients(0, 1.0, false);
    let taken = scaler.accumulate(&mut window, grads, &small);
    assert!(taken.unwrap().is_none());
    let error = scaler.try_flush(&mut window, &other(1, 1002)).unwrap_err();
    assert!(error.to_string().contains("1 of its 2 sums"), "{error}");
    assert_eq!((window.len(), window.gradients()), (1, 2));
    assert!(scaler.try_flush(&mut window, &small).unwrap().is_some());
}

#[test]
fn an_optimizers_state_of_other_parameters_is_warned_of_once() {
    let mut saved = trained(adam(), DType::F32, 0..3, &[]);
    let folder = tempfile::tempdir().unwrap();
    for (file, stranger, unknown) in [
        ("strangers", other(1, 2), Some("of which 2 ")),
        ("half", other(1001, 2), Some("of which 1 ")),
        ("known", Small::new(DType::F32), None),
    ] {
        let path = folder.path().join(file).with_extension("bpk");
        saved.save(&path).unwrap();
        let mut optim = adam();
        let found = logs(path.to_str().unwrap(), || {
            optim.load(&path).unwrap();
            stranger.train(&mut optim, 3..6, &[]);
        });
        assert_eq!(found.len(), usize::from(unknown.is_some()), "{found:?}");
        for line in found {
            assert!(line.starts_with("WARN"), "{line}");
            says(&line, [&format!("2 parameters, {}", unknown.unwrap())]);
        }
    }
}
