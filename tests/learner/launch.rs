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
    assert_ne!(numbers(&*failed.module), numbers(&net()), "one step");
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

/// It has the optimizer of its run, which would count each step once more.
#[test]
fn a_model_that_a_run_has_returned_is_not_launched_as_it_is() {
    let run = Run::of(1);
    let (amp, folder) = (run.amp(), temp_dir());
    let first = amp.launch(run.training(folder.path()), net(), adam(&amp), lr());
    let model = first.unwrap().model;
    let steps = amp.counters().steps();
    let optims: [LearnerOptimizer; 2] = [adam(&amp).into(), pipelined(adam(&amp)).into()];
    for optim in optims {
        let folder = temp_dir();
        let again = amp.launch(run.training(folder.path()), model.clone(), optim, lr());
        let error = again.map(drop).unwrap_err().error;
        let wording = ["`model` is a `Scaled`", "`scaled.into_inner().train()`"];
        is_error(&error, "InvalidValue", wording);
        assert_eq!(amp.counters().steps(), steps);
    }
    let (folder, model) = (temp_dir(), model.into_inner().train());
    let again = amp.launch(run.training(folder.path()), model, adam(&amp), lr());
    assert!(again.is_ok());
}

/// What a loop refuses in its first step.
#[test]
fn parameters_and_states_that_do_not_fit_are_refused_before_the_run() {
    let launched = |model: Net, optim: fn(&MixedPrecision) -> LearnerOptimizer| {
        let (run, folder) = (Run::of(1), temp_dir());
        let amp = run.amp();
        let launched = amp.launch(run.training(folder.path()), model, optim(&amp), lr());
        launched.map(drop).unwrap_err().error
    };
    let half = to_half(net(), FloatDType::F16, &[]);
    let error = launched(half, |amp| adam(amp).into());
    is_error(&error, "HalfPrecisionLeaf", ["`GradScaler`"]);

    /// Was trained on a model with the ids of the net, and other shapes.
    fn trained<O: ModuleOptim>(optim: O, amp: &MixedPrecision) -> ScaledOptimizer<O> {
        let linear = || LinearConfig::new(2, 2).init(&device());
        let other = fill_with_ids((linear(), linear()), 0, 0.4);
        let mut player = Player::with(AdamConfig::new().init(), other, &MixedPrecision::f16());
        let input = Tensor::<2>::ones([1, 2], &device());
        let (first, second) = &player.model;
        player.train(0.1, second.forward(first.forward(input)).mean());
        let mut optim = ScaledOptimizer::new(optim, amp);
        let trained = player.optim.into_bytes().unwrap();
        optim.from_bytes(trained).unwrap();
        optim
    }
    let optims: [fn(&MixedPrecision) -> LearnerOptimizer; 3] = [
        |amp| trained(AdamConfig::new().init(), amp).into(),
        |amp| trained(fused(), amp).into(),
        |amp| pipelined(trained(fused(), amp)).into(),
    ];
    for optim in optims {
        let wording = "for `hidden.weight` has shape [2, 2]";
        is_error(&launched(net(), optim), "ForeignRecord", [wording]);
    }
}

/// Burn's own failure is an error too, and nothing of it is left for the next run on the same handle.
#[test]
fn what_ends_a_run_in_burn_is_an_error() {
    let (run, folder) = (Run::of(1), temp_dir());
    let amp = run.amp();
    let error = || std::io::Error::other("it cannot be read");
    let fail = move || Err(DatasetError::new(error()));
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
