//! `ScaledOptimizerConfig`: defaults, JSON, what is refused.

use crate::support::*;

/// The optimizer of a configuration, in its precision.
fn init<O: ModuleOptim>(
    config: &ScaledOptimizerConfig,
    optim: O,
) -> Result<ScaledOptimizer<O>, AmpError> {
    config.init(optim, &config.precision()?)
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

#[test]
fn by_default_there_is_nothing_around_the_step() {
    let optim = init(&ScaledOptimizerConfig::new(), sgd()).unwrap();
    assert!(optim.window().is_none() && optim.clipping().is_none() && optim.ema().is_none());
    assert_eq!(optim.scaler().loss_scale(), 65536.0);
    assert_eq!(optim.scaler().growth_interval(), 2000);
}

/// The loss scale is that of the handle, which has been given the settings.
#[test]
fn with_mixed_precision() {
    let config = ScaledOptimizerConfig::new()
        .with_scaler(Some(at_scale(8.0)))
        .with_accumulation(Some(AccumulationConfig::new(3)));
    let amp = config.precision().unwrap();
    assert_eq!(amp.dtype(), FloatDType::F16);
    let optim = config.init(sgd(), &amp).unwrap();
    assert_eq!(optim.scaler().loss_scale(), 8.0);
    assert_eq!(optim.window().unwrap().config().micro_batches, 3);
    // Any optimizer will do.
    let masters = MasterWeights::new(AdamConfig::new().build());
    assert!(config.init(masters, &amp).is_ok());
}

/// bf16 has no loss scale, unless the configuration has one. A file may leave both out, as those of before the precision was a setting.
#[test]
fn the_precision_of_a_file() {
    let load = |text: &str| ScaledOptimizerConfig::load_binary(text.as_bytes()).unwrap();
    let scaler = r#""scaler": {"init_scale": 8}"#;
    for (text, dtype, scale) in [
        ("{}".to_string(), FloatDType::F16, 65536.0),
        (format!("{{{scaler}}}"), FloatDType::F16, 8.0),
        (
            r#"{"precision": "BF16"}"#.to_string(),
            FloatDType::BF16,
            1.0,
        ),
        (
            format!(r#"{{"precision": "BF16", {scaler}}}"#),
            FloatDType::BF16,
            8.0,
        ),
    ] {
        let config = load(&load(&text).to_string());
        let amp = config.precision().unwrap();
        assert_eq!((amp.dtype(), amp.loss_scale()), (dtype, scale), "{text}");
        let optim = config.init(sgd(), &amp).unwrap();
        assert!(optim.scaler().precision().unwrap().is(&amp));
    }
}

/// What cannot be used is not hidden by a file either, and the format of the others stays.
#[test]
fn thresholds_in_json() {
    let load = |text: &str| GradientClip::load_binary(text.as_bytes());
    // JSON has no infinity of its own.
    for threshold in [f64::INFINITY, 0.1, 1.0, 1e300] {
        let clip = GradientClip::Norm(threshold);
        assert_eq!(load(&clip.to_string()).unwrap(), clip);
        let config = ScaledOptimizerConfig::new().with_clip(Some(clip));
        assert!(init(&config, sgd()).is_ok());
    }
    let exact = r#"{"GlobalNorm":1.5}"#;
    assert_eq!(load(exact).unwrap(), GradientClip::GlobalNorm(1.5));
    let whole = r#"{"Value":2}"#;
    assert_eq!(load(whole).unwrap(), GradientClip::Value(2.0));
    let config = GradientClip::GlobalNorm(1.5);
    assert_eq!(config.to_string().replace([' ', '\n'], ""), exact);
    assert!(load(r#"{"GlobalNorm":null}"#).is_err());
    assert!(load(r#"{"GlobalNorm":"large"}"#).is_err());

    let nan = GradientClip::Value(f64::NAN).to_string();
    let config = ScaledOptimizerConfig::new().with_clip(Some(load(&nan).unwrap()));
    let error = init(&config, sgd()).unwrap_err();
    is_error(&error, "InvalidValue", ["`clip` is Value(NaN),"]);
}

/// Whatever is called first. The first mistake counts, until a later call of the same method puts another value in its place.
#[test]
fn no_call_uses_a_wrong_setting() {
    let wrong = || {
        sgd_under(at_scale(8.0))
            .with_clipping(GradientClip::Norm(-1.0))
            .with_accumulation(0)
    };
    let error = first_error(wrong());
    is_error(&error, "InvalidValue", ["`clip` is Norm(-1.0),"]);
    assert!(wrong().window().is_none() && wrong().clipping().is_none());

    let model = Trial::new(wrong()).model;
    let grads = || scaled_by_hand(wrong().scaler(), GradientsParams::new());
    let multi = MultiGradientsParams { grads: Vec::new() };
    let record = sgd_under(at_scale(8.0)).to_record();
    let host = Device::flex();
    let found = [
        wrong()
            .try_flush(1.0, model.clone())
            .err()
            .map(AmpError::from),
        (wrong().step_multi(1.0, model.clone(), multi).err()).map(AmpError::from),
        wrong().unscale(grads(), &model).err(),
        wrong().discard(grads()).err(),
        wrong().load_record(record).err(),
        PipelinedOptimizer::new(wrong(), host).err(),
        CapturedStep::new(model.clone(), wrong(), |_: &Pair, x: Tensor<1>| x).err(),
    ];
    for other in found {
        assert_eq!(other.as_ref(), Some(&error));
    }
    assert_eq!(
        panic_message(|| wrong().step(1.0, model, grads())),
        error.to_string()
    );

    let right = wrong().with_clipping(GradientClip::Norm(1.0));
    is_error(
        &first_error(right),
        "InvalidValue",
        ["`micro_batches` is 0,"],
    );
    let right = wrong()
        .with_accumulation(1)
        .with_clipping(GradientClip::Norm(1.0));
    Trial::new(right).step(all(1.0));
}

#[test]
fn a_wrong_setting_is_named() {
    let new = ScaledOptimizerConfig::new;
    let group = (ParamGroup::all(), GradientClip::Norm(-1.0));
    let ema = EmaConfig::new();
    let scaler = GradScalerConfig::new().with_growth_interval(0);
    let wrong = [
        new().with_clip(Some(GradientClip::Value(0.0))),
        new().with_clip_groups(vec![group]),
        new().with_accumulation(Some(AccumulationConfig::new(0))),
        new().with_ema(Some(ema.clone().with_momentum(2.0))),
        new().with_ema(Some(ema.with_overwrite_frequency(Some(0)))),
        new().with_scaler(Some(scaler)),
    ];
    let messages = wrong.map(|config| init(&config, sgd()).unwrap_err().to_string());
    let expected = [
        "`clip` is Value(0.0), but must be a threshold above 0",
        "`clip_groups` is Norm(-1.0), but must be a threshold above 0",
        "`micro_batches` is 0, but must be at least 1",
        "`momentum` is 2, but must be between 0 and 1",
        "`overwrite_frequency` is 0, but must be at least 1",
        "`growth_interval` is 0, but must be at least 1",
    ];
    assert_eq!(messages, expected);
}
