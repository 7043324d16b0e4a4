//! `ScaledOptimizerConfig`: defaults, JSON, what is refused.

use burn::{
    config::Config,
    module::ParamGroup,
    nn::LinearConfig,
    optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig,
        LionConfig, MuonConfig, RmsPropConfig, SgdConfig, decay::WeightDecayConfig,
    },
    tensor::{DType, Device, Tensor},
};
use burn_amp::{
    AccumulationConfig, AmpError, EmaConfig, GradScalerConfig, GradientClip, InnerOptimizerConfig,
    LossScale, MasterWeights, ScaledOptimizerConfig,
};

use crate::support::{Pair, values};

fn sgd() -> ScaledOptimizerConfig {
    ScaledOptimizerConfig::new(SgdConfig::new().into())
}

#[test]
fn by_default_there_is_nothing_around_the_step() {
    let optim = sgd().init().unwrap();
    assert!(optim.window().is_none() && optim.clipping().is_none() && optim.ema().is_none());
    assert_eq!(optim.scaler().loss_scale(), 65536.0);
    assert_eq!(optim.scaler().growth_interval(), 2000);
}

#[test]
fn everything_goes_through_json() {
    let config = ScaledOptimizerConfig::new(
        SgdConfig::new()
            .with_weight_decay(Some(WeightDecayConfig::new(0.5)))
            .into(),
    )
    .with_scaler(GradScalerConfig::new().with_init_scale(8.0))
    .with_clip(Some(GradientClip::GlobalNorm(1.0)))
    .with_clip_groups(vec![(
        ParamGroup::from_predicate("bias"),
        GradientClip::Value(0.25),
    )])
    .with_accumulation(Some(
        AccumulationConfig::new(2)
            .with_skip_micro_batch(true)
            .with_sum(true),
    ))
    .with_ema(Some(
        EmaConfig::new()
            .with_momentum(0.5)
            .with_overwrite_frequency(Some(3)),
    ));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    config.save(&path).unwrap();
    let loaded = ScaledOptimizerConfig::load(&path).unwrap();
    assert_eq!(loaded.to_string(), config.to_string());

    let mut optim = loaded.init().unwrap();
    assert_eq!(
        optim.window().unwrap().config(),
        &config.accumulation.unwrap()
    );
    assert_eq!(optim.ema().unwrap().config(), &config.ema.unwrap());
    let mut model = Pair::new(vec![1.0; 6], vec![1.0; 4], DType::F32);
    for _ in 0..2 {
        let grads = model.gradients([0.0; 6], [4.0; 4], 8.0);
        model = optim.step(1.0, model, grads);
    }
    // Weight decay takes half of all; the bias's clipped gradient a quarter more.
    assert_eq!(model.values(), [[0.5; 6].as_slice(), &[0.25; 4]].concat());
}

#[test]
fn every_optimizer_of_burn() {
    let configs: [InnerOptimizerConfig; 9] = [
        AdaGradConfig::new().into(),
        AdafactorConfig::new().into(),
        AdamConfig::new().into(),
        AdamWConfig::new().into(),
        AdanConfig::new().into(),
        LambConfig::new().into(),
        LionConfig::new().into(),
        RmsPropConfig::new().into(),
        SgdConfig::new().into(),
    ];
    for inner in configs {
        let config = ScaledOptimizerConfig::new(inner);
        let text = config.to_string();
        let mut optim = config.init().unwrap();
        let model = Pair::new(vec![1.0; 6], vec![1.0; 4], DType::F32);
        let grads = model.gradients([1.0; 6], [1.0; 4], 65536.0);
        let moved = optim.step(0.1, model.clone(), grads);
        assert_ne!(moved.values(), model.values(), "{text}");
    }
}

/// Muon steps matrices only: it gets a layer without a bias.
#[test]
fn muon() {
    let device = Device::default().autodiff();
    let layer = LinearConfig::new(4, 4).with_bias(false).init(&device);
    let config = ScaledOptimizerConfig::new(MuonConfig::new().into());
    let mut optim = config.init().unwrap();
    let loss = layer.forward(Tensor::<2>::ones([2, 4], &device)).sum();
    let grads = optim.backward(loss, &layer);
    let moved = optim.step(0.1, layer.clone(), grads);
    assert_eq!(
        optim.scaler().last_outcome(),
        Some(burn_amp::StepOutcome::Applied)
    );
    assert_ne!(values(moved.weight.val()), values(layer.weight.val()));
}

#[test]
fn a_loss_scale_factor_is_a_static_scale() {
    let optim = sgd().with_loss_scale_factor(Some(128.0)).init().unwrap();
    assert_eq!(optim.scaler().schedule(), LossScale::fixed(128.0).unwrap());
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e39, 1e-60] {
        let error = sgd().with_loss_scale_factor(Some(factor)).init();
        let Err(AmpError::InvalidValue(error)) = error else {
            panic!("{factor} was accepted");
        };
        assert_eq!(error.field(), "loss_scale_factor");
    }
}

#[test]
fn a_loss_scale_factor_outside_the_bounds_is_named_as_such() {
    let scaler = GradScalerConfig::new()
        .with_min_scale(Some(2.0))
        .with_max_scale(Some(1e6));
    for factor in [1.0, 2e6] {
        let config = sgd()
            .with_scaler(scaler.clone())
            .with_loss_scale_factor(Some(factor));
        let Err(AmpError::InvalidValue(error)) = config.init() else {
            panic!("{factor} was accepted");
        };
        assert_eq!(error.field(), "loss_scale_factor");
        assert_eq!(error.value(), factor.to_string());
        assert!(error.allowed().contains("`min_scale` (2)"), "{error}");
    }
    let config = sgd()
        .with_scaler(scaler)
        .with_loss_scale_factor(Some(128.0));
    assert_eq!(config.init().unwrap().scaler().loss_scale(), 128.0);
}

/// JSON has no infinity of its own.
#[test]
fn an_infinite_threshold_goes_through_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for threshold in [f64::INFINITY, 0.1, 1.0, 1e300] {
        let group = (
            ParamGroup::from_predicate("bias"),
            GradientClip::Norm(threshold),
        );
        let config = sgd()
            .with_clip(Some(GradientClip::GlobalNorm(threshold)))
            .with_clip_groups(vec![group.clone()]);
        config.save(&path).unwrap();
        let loaded = ScaledOptimizerConfig::load(&path).unwrap();
        assert_eq!(loaded.clip, config.clip);
        assert_eq!(loaded.clip_groups[0].1, group.1);
        assert!(loaded.init().is_ok());
    }
}

/// What cannot be used is not hidden by a file either, and the format of the others stays.
#[test]
fn thresholds_in_json() {
    let load = |text: &str| GradientClip::load_binary(text.as_bytes());
    let exact = r#"{"GlobalNorm":1.5}"#;
    assert_eq!(load(exact).unwrap(), GradientClip::GlobalNorm(1.5));
    let whole = r#"{"Value":2}"#;
    assert_eq!(load(whole).unwrap(), GradientClip::Value(2.0));
    let config = GradientClip::GlobalNorm(1.5);
    assert_eq!(config.to_string().replace([' ', '\n'], ""), exact);
    assert!(load(r#"{"GlobalNorm":null}"#).is_err());
    assert!(load(r#"{"GlobalNorm":"large"}"#).is_err());

    let nan = GradientClip::Value(f64::NAN).to_string();
    let config = sgd().with_clip(Some(load(&nan).unwrap()));
    let Err(AmpError::InvalidValue(error)) = config.init() else {
        panic!("{nan} was accepted");
    };
    assert_eq!((error.field(), error.value()), ("clip", "Value(NaN)"));
}

#[test]
fn another_optimizer_can_be_put_in() {
    let config = sgd().with_accumulation(Some(AccumulationConfig::new(3)));
    let masters = MasterWeights::new(AdamConfig::new().build()).init();
    let optim = config.wrap(masters).unwrap();
    assert_eq!(optim.window().unwrap().config().micro_batches, 3);
}

#[test]
fn a_wrong_setting_is_named() {
    let group = (ParamGroup::all(), GradientClip::Norm(-1.0));
    for (config, field) in [
        (sgd().with_clip(Some(GradientClip::Value(0.0))), "clip"),
        (sgd().with_clip_groups(vec![group]), "clip_groups"),
        (
            sgd().with_accumulation(Some(AccumulationConfig::new(0))),
            "micro_batches",
        ),
        (
            sgd().with_ema(Some(EmaConfig::new().with_momentum(2.0))),
            "momentum",
        ),
        (
            sgd().with_scaler(GradScalerConfig::new().with_growth_interval(0)),
            "growth_interval",
        ),
    ] {
        let Err(AmpError::InvalidValue(error)) = config.init() else {
            panic!("{field} was accepted");
        };
        assert_eq!(error.field(), field);
    }
}
