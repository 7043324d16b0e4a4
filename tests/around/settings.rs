//! `ScaledOptimizerConfig`: defaults, JSON, what is refused.

use crate::support::*;

/// The optimizer of a configuration, in its precision.
pub fn init(config: &ScaledOptimizerConfig) -> Result<ScaledOptimizer, AmpError> {
    config.init(SgdConfig::new().init(), &config.precision()?)
}

pub fn new() -> ScaledOptimizerConfig {
    ScaledOptimizerConfig::new()
}

pub fn load(json: &str) -> ScaledOptimizerConfig {
    ScaledOptimizerConfig::load_binary(json.as_bytes()).unwrap_or_else(|e| panic!("{json}: {e}"))
}

/// A name that is misspelt is not taken for a default.
#[test]
fn unknown_names_of_a_file() {
    let ema = load(r#"{"ema": {"momentum": 0.5}}"#).ema;
    assert_eq!(ema, Some(EmaConfig::new().with_momentum(0.5)));
    for text in [r#"{"clipping": null}"#, r#"{"ema": {"momentums": 0.5}}"#] {
        let error = ScaledOptimizerConfig::load_binary(text.as_bytes()).unwrap_err();
        says(&error.to_string(), ["unknown field"]);
    }
}

/// bf16 has no loss scale, unless the configuration has one. A file may leave both out, as those of before the precision was a setting.
#[test]
fn the_precision_of_a_file() {
    let bf16 = FloatDType::BF16;
    let both = r#"{"precision": "BF16", "scaler": {"init_scale": 8}}"#;
    for (text, dtype, scale) in [
        ("{}", FloatDType::F16, 65536.0),
        (r#"{"scaler": {"init_scale": 8}}"#, FloatDType::F16, 8.0),
        (r#"{"precision": "BF16"}"#, bf16, 1.0),
        (both, bf16, 8.0),
    ] {
        let config = load(&load(text).to_string());
        let amp = config.precision().unwrap();
        assert_eq!((amp.dtype(), amp.loss_scale()), (dtype, scale), "{text}");
        // And nothing around the step.
        let optim = init(&config).unwrap();
        assert!(optim.window().is_none() && optim.clipping().is_none() && optim.ema().is_none());
        assert_eq!(optim.scaler().loss_scale(), scale);
    }
    // Any optimizer will do, and its loss scale is that of the handle.
    let amp = f16_under(at_scale(8.0));
    let mut optim = new().init(masters(), &amp).unwrap();
    optim.scaler_mut().set_loss_scale(16.0).unwrap();
    assert_eq!(amp.loss_scale(), 16.0);
    // What the settings say of the scale is not dropped where the handle has others.
    let config = new().with_scaler(Some(at_scale(4.0)));
    let error = config.init(SgdConfig::new().init(), &amp).unwrap_err();
    is_error(&error, "InvalidValue", ["`scaler` is set here"]);
}

/// JSON has no infinity of its own.
#[test]
fn thresholds_in_json() {
    let load = |text: &str| GradientClip::load_binary(text.as_bytes());
    for threshold in [f64::INFINITY, 0.1, 1.0, 1e300] {
        let clip = GradientClip::Norm(threshold);
        assert_eq!(load(&clip.to_string()).unwrap(), clip);
    }
    let (exact, clip) = (r#"{"GlobalNorm":1.5}"#, GradientClip::GlobalNorm(1.5));
    assert_eq!(clip.to_string().replace([' ', '\n'], ""), exact);
    assert_eq!(load(r#"{"Value":2}"#).unwrap(), GradientClip::Value(2.0));
    for wrong in [r#"{"GlobalNorm":null}"#, r#"{"GlobalNorm":"large"}"#] {
        assert!(load(wrong).is_err());
    }
}

/// Whatever is called first. The first mistake counts, until a later call of the same method puts another value in its place.
#[test]
fn no_call_uses_a_wrong_setting() {
    let clipped = || sgd().with_clipping(GradientClip::Norm(-1.0));
    let wrong = || clipped().with_accumulation(0);
    let error = first_error(wrong());
    is_error(&error, "InvalidValue", ["`clip` is Norm(-1.0),"]);
    assert!(wrong().window().is_none() && wrong().clipping().is_none());

    let model = Pair::of(0.0);
    let grads = || model.scaled(ONES, 1.0);
    let flushed = wrong().try_flush(1.0, model.clone());
    let multi = MultiGradientsParams { grads: Vec::new() };
    let multi = wrong().step_multi(1.0, model.clone(), multi);
    let of_bias = |_: &Pair, x: Tensor<1>| x;
    for found in [
        flushed.err().map(AmpError::from),
        multi.err().map(AmpError::from),
        wrong().unscale(grads(), &model).err(),
        wrong().discard(grads()).err(),
        wrong().load_record(sgd().to_record()).err(),
        PipelinedOptimizer::new(wrong(), Device::flex()).err(),
        CapturedStep::new(model.clone(), wrong(), of_bias).err(),
    ] {
        assert_eq!(found.as_ref(), Some(&error));
    }
    let message = panic_message(|| wrong().step(1.0, model.clone(), grads()));
    assert_eq!(message, error.to_string());

    let right = || wrong().with_clipping(GradientClip::Norm(1.0));
    let error = first_error(right());
    is_error(&error, "InvalidValue", ["`micro_batches` is 0,"]);
    Trial::new(right().with_accumulation(1)).step(ONES);
}

/// Settings as JSON has them, and the message of their refusal.
const REFUSED: &str = r#"
{"accumulation": {"micro_batches": 0, "sum": false, "skip_micro_batch": false}} > `micro_batches` is 0, but must be at least 1
{"ema": {"momentum": -0.1, "validation": false}} > `momentum` is -0.1, but must be between 0 and 1
{"ema": {"momentum": 1.1, "validation": false}} > `momentum` is 1.1, but must be between 0 and 1
{"ema": {"momentum": "NaN"}} > `momentum` is NaN, but must be between 0 and 1
{"ema": {"momentum": 1, "overwrite_frequency": 0, "validation": false}} > `overwrite_frequency` is 0, but must be at least 1
{"clip": {"Value": "NaN"}} > `clip` is Value(NaN), but must be a threshold above 0
{"scaler": {"growth_interval": 0}} > `growth_interval` is 0, but must be at least 1
"#;

/// Nor does a file hide it.
#[test]
fn a_wrong_setting_is_named() {
    for [json, message] in rows(REFUSED) {
        let error = init(&load(&load(json).to_string())).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    for momentum in [0.0, 1.0] {
        EmaConfig::new().with_momentum(momentum).init().unwrap();
    }
    assert_eq!(EmaConfig::default().momentum, 0.99);
}
