//! `MixedPrecision::launch`: a Learner's run in one call.

use crate::support::*;

fn launched(run: &Run) -> Result<Done, StepError<Net>> {
    let (amp, folder) = (run.amp(), temp_dir());
    let optim = AdamConfig::new().init();
    let result = amp.launch(run.training(folder.path()), net(), optim, lr())?;
    Ok(Done::of(result, &amp, &folder).finished())
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
    is_error(&failed.error, "LossScaleExhausted", ["after 4 skipped"]);
    assert!(all_finite(&*failed.module));
    let has_stepped = numbers(&*failed.module) != numbers(&net());
    assert!(has_stepped, "one step was taken");
}

/// Before it begins, with the model as it was.
#[test]
fn a_learner_that_cannot_be_made_returns_the_model() {
    let (run, folder) = (Run::of(1), temp_dir());
    let optim = adam(&MixedPrecision::f16());
    let training = run.training(folder.path());
    let launched = run.amp().launch(training, net(), optim, lr());
    let refused = launched.map(drop).unwrap_err();
    let another = "`optim` is a `ScaledOptimizer` with another scale";
    says(&refused, [another]);
    assert_eq!(numbers(&*refused.module), numbers(&net()));
}

/// Burn's own failure is an error too, and nothing of it is left for the next run on the same handle.
#[test]
fn what_ends_a_run_in_burn_is_an_error() {
    let (run, folder) = (Run::of(1), temp_dir());
    let amp = run.amp();
    let fail = || {
        Err(DatasetError::new(std::io::Error::other(
            "it cannot be read",
        )))
    };
    let unreadable = Watched(InMemDataset::new(samples(8)), fail);
    let unreadable = run.training_on(loader(unreadable, None), folder.path());
    let failed = amp.launch(unreadable, net(), AdamConfig::new().init(), lr());
    let failed = failed.map(drop).unwrap_err();
    is_error(&failed.error, "RunFailed", ["it cannot be read"]);
    assert_eq!(numbers(&*failed.module), numbers(&net()));

    let (folder, optim) = (temp_dir(), AdamConfig::new().init());
    let again = amp.launch(run.training(folder.path()), net(), optim, lr());
    assert!(again.is_ok());
}
