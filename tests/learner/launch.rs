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

/// Of a run that fails, after one good epoch, the model is what was trained.
#[test]
fn an_error_returns_the_model() {
    let run = Run::of(2).with_skips(3).poisoned(8..48);
    let failed = launched(&run, &run.amp(), net(), burns_adam());
    let failed = failed.map(drop).unwrap_err();
    is_error(&failed.error, "LossScaleExhausted", ["after 4 skipped"]);
    assert!(all_finite(&*failed.module));
    assert_ne!(numbers(&*failed.module), numbers(&net()), "one step");
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
        let advice = "`scaled.into_inner().train()`";
        is_error(&error, "InvalidValue { field: \"model\"", [advice]);
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

/// What a loop refuses in its first step; a Learner cannot accumulate as the optimizer is set to, nor with another scale; on a thread of its own, an optimizer
/// takes no averages and leaves no step to the model: an error at once, not another training. The model is as it was.
#[test]
fn what_does_not_fit_is_refused_before_the_run() {
    let amp = MixedPrecision::f16();
    let with = |field: &str| format!("InvalidValue {{ field: \"{field}\"");
    let averages = pipelined(adam(&amp).with_ema(EmaConfig::new()));
    let by_model = pipelined(adam(&amp).with_own_optimize());
    let wrong = adam(&amp).with_ema(EmaConfig::new().with_momentum(2.0));
    let wrong_fused = FusedAdam::new(AdamConfig::new().with_beta_1(1.0));
    let of_other = pipelined(trained(fused_adam(), &amp));
    let (windows, shape) = (adam(&amp).with_accumulation(4), "`hidden.weight`");
    let (foreign, scale) = (
        "ForeignRecord".to_string(),
        "ScaledOptimizer::new(optim, &amp)",
    );
    let cases: [(LearnerOptimizer, _, _); 10] = [
        (
            windows.into(),
            with("with_accumulation"),
            "grads_accumulation(4)",
        ),
        (adam(&MixedPrecision::f16()).into(), with("optim"), scale),
        (
            sgd_under(GradScalerConfig::new()).into(),
            with("optim"),
            scale,
        ),
        (wrong.into(), with("momentum"), "between 0 and 1"),
        (wrong_fused.into(), with("beta_1"), "below 1"),
        (averages.into(), with("with_ema"), "left out"),
        (by_model.into(), with("with_own_optimize"), "left out"),
        (trained(burns_adam(), &amp).into(), foreign.clone(), shape),
        (trained(fused_adam(), &amp).into(), foreign.clone(), shape),
        (of_other.into(), foreign, shape),
    ];
    for (optim, variant, part) in cases {
        let refused = launched(&Run::of(1), &amp, net(), optim);
        let refused = refused.map(drop).unwrap_err();
        is_error(&refused.error, &variant, [part]);
        assert_eq!(numbers(&*refused.module), numbers(&net()));
    }
    let half = to_half(net(), FloatDType::F16, &[]);
    let refused = launched(&Run::of(1), &amp, half, adam(&amp));
    let error = refused.map(drop).unwrap_err().error;
    is_error(&error, "Border { what: Parameter", []);
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
