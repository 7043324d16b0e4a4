//! `MixedPrecision::launch`: what is refused before a Learner's run, and what ends it. That it is the same run is in `resume`.

use crate::module::without_autocast;
use crate::support::*;

/// The run of a model, or why there is none.
fn launched<M: Trained + 'static>(
    run: &Run,
    amp: &MixedPrecision,
    model: M,
    optim: impl Into<LearnerOptimizer>,
) -> Result<Done<M>, StepError<M>> {
    let folder = temp_dir();
    let result = amp.launch(run.training(folder.path()), model, optim, lr())?;
    Ok(Done::of(result, amp, &folder).finished())
}

fn burns_adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// Of a run that fails, after one good epoch, the model is what was trained. Before it begins, it is as it was.
#[test]
fn an_error_returns_the_model() {
    let run = Run::of(2).with_skips(3).poisoned(8..48);
    let failed = launched(&run, &run.amp(), net(), burns_adam());
    let failed = failed.map(drop).unwrap_err();
    is_error(&failed.error, "LossScaleExhausted", ["after 4 skipped"]);
    assert!(all_finite(&*failed.module));
    assert_ne!(numbers(&*failed.module), numbers(&net()), "one step");

    let other = adam(&MixedPrecision::f16());
    let refused = launched(&Run::of(1), &Run::of(1).amp(), net(), other);
    let refused = refused.map(drop).unwrap_err();
    let another = "`optim` is a `ScaledOptimizer` with another scale";
    says(&refused, [another]);
    assert_eq!(numbers(&*refused.module), numbers(&net()));
}

/// It would train in f32.
#[test]
fn f32_parameters_without_autocast_end_the_run_at_its_first_step() {
    let amp = Run::of(1).amp();
    let error = launched(&Run::of(1), &amp, without_autocast(net()), burns_adam());
    let error = error.map(drop).unwrap_err().error;
    is_error(&error, "NoScope", ["the free `autocast`"]);
    assert_eq!(amp.counters().steps(), 1);
}

/// It has the optimizer of its run, which would count each step once more.
#[test]
fn a_model_that_a_run_has_returned_is_not_launched_as_it_is() {
    let run = Run::of(1);
    let amp = run.amp();
    let model = launched(&run, &amp, net(), adam(&amp)).unwrap().model;
    let steps = amp.counters().steps();
    let optims: [LearnerOptimizer; 2] = [adam(&amp).into(), pipelined(adam(&amp)).into()];
    for optim in optims {
        let again = launched(&run, &amp, model.clone(), optim);
        let error = again.map(drop).unwrap_err().error;
        let wording = ["`model` is a `Scaled`", "`scaled.into_inner().train()`"];
        is_error(&error, "InvalidValue", wording);
        assert_eq!(amp.counters().steps(), steps);
    }
    let model = model.into_inner().train();
    assert!(launched(&run, &amp, model, adam(&amp)).is_ok());
}

/// Was trained on a model with the ids of the net, and other shapes.
fn trained<O: ModuleOptim>(optim: O, amp: &MixedPrecision) -> ScaledOptimizer<O> {
    let linear = || LinearConfig::new(2, 2).init(&device());
    let other = fill_with_ids((linear(), linear()), 0, 0.4);
    let mut player = Player::with(burns_adam(), other, &MixedPrecision::f16());
    let input = Tensor::<2>::ones([1, 2], &device());
    let (first, second) = &player.model;
    player.train(0.1, second.forward(first.forward(input)).mean());
    let mut optim = ScaledOptimizer::new(optim, amp);
    let trained = player.optim.into_bytes().unwrap();
    optim.from_bytes(trained).unwrap();
    optim
}

/// What a loop refuses in its first step.
#[test]
fn parameters_and_states_that_do_not_fit_are_refused_before_the_run() {
    let refused = |model: Net, optim: fn(&MixedPrecision) -> LearnerOptimizer| {
        let amp = Run::of(1).amp();
        let launched = launched(&Run::of(1), &amp, model, optim(&amp));
        launched.map(drop).unwrap_err().error
    };
    let half = to_half(net(), FloatDType::F16, &[]);
    let error = refused(half, |amp| adam(amp).into());
    is_error(&error, "Border { what: Parameter", ["`GradScaler`"]);
    let optims: [fn(&MixedPrecision) -> LearnerOptimizer; 3] = [
        |amp| trained(burns_adam(), amp).into(),
        |amp| trained(fused_adam(), amp).into(),
        |amp| pipelined(trained(fused_adam(), amp)).into(),
    ];
    for optim in optims {
        let wording = "for `hidden.weight` has shape [2, 2]";
        is_error(&refused(net(), optim), "ForeignRecord", [wording]);
    }
}

/// A Learner cannot accumulate as the optimizer is set to, nor with another scale; on a thread of its own, an optimizer takes no averages and
/// leaves no step to the model: an error at once, not another training.
#[test]
fn an_optimizer_that_does_not_fit_is_refused() {
    let amp = MixedPrecision::f16();
    let windows = adam(&amp).with_accumulation(4);
    let averages = pipelined(adam(&amp).with_ema(EmaConfig::new()));
    let by_model = pipelined(adam(&amp).with_own_optimize());
    let other = adam(&MixedPrecision::f16());
    let wrong = adam(&amp).with_ema(EmaConfig::new().with_momentum(2.0));
    let wrong_fused = FusedAdam::new(AdamConfig::new().with_beta_1(1.0));
    let scale = "ScaledOptimizer::new(optim, &amp)";
    let cases: [(LearnerOptimizer, _, _); 7] = [
        (windows.into(), "with_accumulation", "grads_accumulation(4)"),
        (other.into(), "optim", scale),
        (wrong.into(), "momentum", "between 0 and 1"),
        (wrong_fused.into(), "beta_1", "below 1"),
        (sgd_under(GradScalerConfig::new()).into(), "optim", scale),
        (averages.into(), "with_ema", "left out"),
        (by_model.into(), "with_own_optimize", "left out"),
    ];
    for (optim, field, advice) in cases {
        let error = amp.learner(net(), optim, lr()).map(drop).unwrap_err();
        is_error(&error, "InvalidValue", [&*format!("`{field}` is"), advice]);
    }
    assert!(burns(&amp).is_ok());
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
    let failed = amp.launch(unreadable, net(), burns_adam(), lr());
    let failed = failed.map(drop).unwrap_err();
    is_error(&failed.error, "RunFailed", ["it cannot be read"]);
    assert_eq!(numbers(&*failed.module), numbers(&net()));
    assert!(launched(&run, &amp, net(), burns_adam()).is_ok());
}
