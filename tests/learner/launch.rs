//! `MixedPrecision::launch`: what is refused before a Learner's run, and what ends it. That it is the same run is in `resume`.

use crate::module::without_autocast;
use crate::support::*;

/// The run of a model, or why there is none.
fn launched(
    run: &Run,
    amp: &MixedPrecision,
    model: Net,
    optim: impl Into<LearnerOptimizer>,
) -> Result<Scaled<Net>, StepError<Net>> {
    let folder = temp_dir();
    let result = amp.launch(run.training(folder.path()), model, optim, lr())?;
    Ok(Done::of(result, amp, &folder).finished().model)
}

/// The model is what was trained, and nothing of the error is left for the next run on the same handle. In the first run one epoch is good; the second would
/// train in f32; the third ends in Burn.
#[test]
fn an_error_returns_the_model() {
    let mut unreadable = Run::of(1);
    let fail = || std::io::Error::other("it cannot be read");
    unreadable.watch = Arc::new(move || Err(DatasetError::new(fail())));
    let exhausted = Run::of(2).with_skips(3).poisoned(8..48);
    let plain = without_autocast(net());
    for (run, model, stepped, variant, part) in [
        (exhausted, net(), 1, "LossScaleExhausted", "after 4 "),
        (Run::of(1), plain, 1, "NoScope", "the free `autocast`"),
        (unreadable, net(), 0, "RunFailed", "it cannot be read"),
    ] {
        let amp = run.amp();
        let failed = launched(&run, &amp, model, burns_adam()).unwrap_err();
        is_error(&failed.error, variant, [part]);
        assert_eq!(amp.counters().stepped(), stepped, "{variant}");
        let is_trained = numbers(&*failed.module) != numbers(&net());
        assert!(all_finite(&*failed.module) && is_trained == (stepped > 0));
        assert!(launched(&Run::of(1), &amp, net(), burns_adam()).is_ok());
    }
}

/// A run that fails in its fourth step, whose validation would be that of the averages.
#[test]
fn an_error_returns_the_weights_and_not_their_averages() {
    let run = Run::of(1).with_skips(2).poisoned(24..48);
    let failed = |validates: bool| {
        let amp = run.amp();
        let averages = EmaConfig::new().with_validation(validates);
        let failed = launched(&run, &amp, net(), adam(&amp).with_ema(averages));
        numbers(&*failed.unwrap_err().module)
    };
    assert_eq!(failed(true), failed(false));
}

/// It has the optimizer of its run, which would count each step once more.
#[test]
fn a_model_that_a_run_has_returned_is_not_launched_as_it_is() {
    let run = Run::of(1);
    let amp = run.amp();
    let model = launched(&run, &amp, net(), adam(&amp)).unwrap();
    let optims: [LearnerOptimizer; 2] = [adam(&amp).into(), pipelined(adam(&amp)).into()];
    for optim in optims {
        let error = amp
            .learner(model.clone(), optim, lr())
            .map(drop)
            .unwrap_err();
        let advice = "`scaled.into_inner().train()`";
        is_error(&error, "InvalidValue { field: \"model\"", [advice]);
        assert_eq!(amp.counters().steps(), 6);
    }
    let model = model.into_inner().train();
    assert!(launched(&run, &amp, model, adam(&amp)).is_ok());
}

/// Was trained on a model with ids of the net, and other shapes.
fn trained<O: ModuleOptim>(optim: O, amp: &MixedPrecision) -> ScaledOptimizer<O> {
    let other: Linear = fill_with_ids(LinearConfig::new(2, 2).init(&device()), 0, 0.4);
    let grads = gradients(&other, 0, 1.0, FloatDType::F32);
    let mut before = burns_adam();
    before.step(0.1, other, grads);
    let mut optim = ScaledOptimizer::new(optim, amp);
    let record = before.to_record().into_bytes();
    optim.from_bytes(record.unwrap()).unwrap();
    optim
}

/// What a loop refuses in its first step; a Learner cannot accumulate as the optimizer is set to, nor with another scale; on a thread of its own, an optimizer
/// takes no averages and leaves no step to the model: an error at once, not another training. The model is as it was.
#[test]
fn what_does_not_fit_is_refused_before_the_run() {
    let amp = MixedPrecision::f16();
    let refused = |model: Net, optim: LearnerOptimizer| {
        let before = stored(&model);
        let refused = launched(&Run::of(1), &amp, model, optim).unwrap_err();
        assert_eq!(stored(&*refused.module), before);
        refused.error
    };
    let windows = adam(&amp).with_accumulation(4);
    let (other, own) = (adam(&MixedPrecision::f16()), sgd_under(at_scale(2.0)));
    let scale = "ScaledOptimizer::new(optim, &amp)";
    let wrong = adam(&amp).with_ema(EmaConfig::new().with_momentum(2.0));
    let wrong_fused = FusedAdam::new(AdamConfig::new().with_beta_1(1.0));
    let averages = pipelined(adam(&amp).with_ema(EmaConfig::new()));
    let by_model = pipelined(adam(&amp).with_own_optimize());
    let values: [(LearnerOptimizer, _, _); 7] = [
        (windows.into(), "with_accumulation", "grads_accumulation(4)"),
        (other.into(), "optim", scale),
        (own.into(), "optim", scale),
        (wrong.into(), "momentum", "between 0 and 1"),
        (wrong_fused.into(), "beta_1", "below 1"),
        (averages.into(), "with_ema", "left out"),
        (by_model.into(), "with_own_optimize", "left out"),
    ];
    for (optim, field, part) in values {
        let variant = format!("InvalidValue {{ field: \"{field}\"");
        is_error(&refused(net(), optim), &variant, [part]);
    }
    let foreign: [LearnerOptimizer; 3] = [
        trained(burns_adam(), &amp).into(),
        trained(fused_adam(), &amp).into(),
        pipelined(trained(fused_adam(), &amp)).into(),
    ];
    for optim in foreign {
        is_error(&refused(net(), optim), "ForeignRecord", ["`hidden.weight`"]);
    }
    let half = to_half(net(), FloatDType::F16, &[]);
    let error = refused(half, adam(&amp).into());
    is_error(&error, "Border { what: Parameter", ["hidden.weight"]);
}
