//! `MixedPrecision::launch`: a Learner's run in one call.

use burn::data::dataset::{Dataset, DatasetError};

use crate::support::*;

fn launched(run: &Run) -> Result<Done, StepError<Net>> {
    let (amp, folder) = (run.amp(), temp_dir());
    let optim = AdamConfig::new().init();
    let result = amp.launch(run.training(folder.path()), net(), optim, lr())?;
    let done = Done::of(result, &amp, &folder);
    assert_eq!(done.error, None);
    Ok(done)
}

/// The same bits as learner, training and launch by themselves.
#[test]
fn a_run_in_one_call() {
    let run = Run::of(4);
    assert_same(&launched(&run).unwrap(), &run.launch());
}

/// One good epoch, then only overflows: the error has what was trained.
#[test]
fn a_run_that_fails_returns_the_model() {
    let run = Run::of(2).with_skips(3).poisoned(8..48);
    let failed = launched(&run).map(drop).unwrap_err();
    let is_exhausted = matches!(failed.error, AmpError::LossScaleExhausted { skips: 4, .. });
    assert!(is_exhausted, "{failed}");
    assert!(all_finite(&*failed.module));
    assert_ne!(
        numbers(&*failed.module),
        numbers(&net()),
        "one step was taken"
    );
}

/// Before it begins, with the model as it was.
#[test]
fn a_learner_that_cannot_be_made_returns_the_model() {
    let (run, folder) = (Run::of(1), temp_dir());
    let optim = adam(&MixedPrecision::f16());
    let refused = run
        .amp()
        .launch(run.training(folder.path()), net(), optim, lr());
    let refused = refused.map(drop).unwrap_err();
    says(
        &refused,
        ["`optim` is a `ScaledOptimizer` with another scale"],
    );
    assert_eq!(numbers(&*refused.module), numbers(&net()));
}

/// Samples that are not there.
struct Unreadable;

impl Dataset<Sample> for Unreadable {
    fn get(&self, _index: usize) -> Result<Sample, DatasetError> {
        Err(DatasetError::new(std::io::Error::other(
            "it cannot be read",
        )))
    }

    fn len(&self) -> usize {
        8
    }
}

/// Burn's own failure is an error too, and nothing of it is left for the next run on the same handle.
#[test]
fn what_ends_a_run_in_burn_is_an_error() {
    let (run, folder) = (Run::of(1), temp_dir());
    let amp = run.amp();
    let unreadable = run.training_on(loader(Unreadable, None), folder.path());
    let failed = amp.launch(unreadable, net(), AdamConfig::new().init(), lr());
    let failed = failed.map(drop).unwrap_err();
    let is_burns = matches!(failed.error, AmpError::RunFailed { .. });
    assert!(is_burns, "{failed}");
    says(&failed, ["it cannot be read"]);
    assert_eq!(numbers(&*failed.module), numbers(&net()));

    let (folder, optim) = (temp_dir(), AdamConfig::new().init());
    amp.launch(run.training(folder.path()), net(), optim, lr())
        .unwrap();
}

/// The free `autocast` opens scopes in a Learner alone: a check as in one does not last.
#[test]
fn a_model_is_checked_as_in_a_learner() {
    let amp = MixedPrecision::f16();
    let model = amp.attach(Net::new(&Device::default().autodiff()));
    let loss = |model: &Net| {
        let features = Tensor::ones([4, FEATURES], &Device::default().autodiff());
        autocast(features, |x| model.forward(x)).square().mean()
    };
    amp.check_in_learner(&model, loss).unwrap();
    assert_eq!(
        amp.check(&model, loss).map(drop).unwrap_err(),
        AmpError::NoScope
    );
}
