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
    for (stranger, unknown) in [
        (other(1, 2), "2 of its 2 sums"),
        (other(1001, 2), "1 of its 2 sums"),
    ] {
        let small = Small::new(DType::F32);
        let mut optim = adam().with_accumulation(3);
        let grads = |step| small.gradients(step, 1.0, false);
        for step in 0..2 {
            optim.step(0.1, small.clone(), grads(step));
        }
        let before = contents(&mut optim);
        let parameters_before = parameters(&stranger);

        let flushed = optim.clone().try_flush(0.1, stranger.clone());
        let of_its_own = stranger.gradients(2, 1.0, false);
        let stepped = optim.try_step(0.1, stranger.clone(), of_its_own);
        for failed in [flushed.unwrap_err(), stepped.unwrap_err()] {
            is_error(&failed.error, "ForeignRecord", [unknown, "`drop_window`"]);
        }
        assert_eq!(contents(&mut optim), before);
        assert_eq!(parameters(&stranger), parameters_before);
        // The model that it belongs to goes on.
        let stepped = optim.step(0.1, small.clone(), grads(2));
        assert_ne!(parameters(&stepped), parameters(&small));
    }
}

#[test]
fn an_optimizers_state_of_other_parameters_is_warned_of_once() {
    let mut saved = trained(adam(), DType::F32, 0..3, &[]);
    let folder = tempfile::tempdir().unwrap();
    for (file, stranger, warned) in [
        ("strangers", other(1, 2), Some("2 parameters, of which 2 ")),
        ("half", other(1001, 2), Some("2 parameters, of which 1 ")),
        ("known", Small::new(DType::F32), None),
    ] {
        let path = folder.path().join(file).with_extension("bpk");
        saved.save(&path).unwrap();
        let mut optim = adam();
        let found = logs(path.to_str().unwrap(), || {
            optim.load(&path).unwrap();
            stranger.train(&mut optim, 3..6, &[]);
        });
        match warned {
            Some(warned) => says(only(&found), ["WARN", warned]),
            None => assert_eq!(found, [""; 0]),
        }
    }
}
