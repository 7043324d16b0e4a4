//! What the golden files hold, and how they were made. It never changes: later releases must make the same of it.

use serde::Serialize;

use crate::support::*;

/// The step after those that went into the files.
pub const NEXT: usize = 7;

/// No setting at its default.
pub fn config() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_factor(4.0)
        .with_backoff_factor(0.25)
        .with_growth_interval(2)
        .with_enabled(false)
        .with_dynamic(false)
        .with_min_scale(Some(0.5))
        .with_raise_error_at_min_scale(true)
        .with_max_scale(Some(32768.0))
        .with_hysteresis(2)
        .with_consecutive_hysteresis(true)
        .with_max_consecutive_skips(Some(9))
        .with_parameter_dtype_gradients(true)
}

/// The same of a scaler at work.
pub fn settings() -> GradScalerConfig {
    config()
        .with_enabled(true)
        .with_dynamic(true)
        .with_parameter_dtype_gradients(false)
}

/// The same of all that stands around a step.
pub fn scaled_config() -> ScaledOptimizerConfig {
    let [bias, norm] = ["bias", "norm"].map(ParamGroup::from_predicate);
    let groups = vec![
        (bias, GradientClip::Value(0.25)),
        (norm, GradientClip::Norm(f64::INFINITY)),
    ];
    let window = AccumulationConfig::new(4)
        .with_sum(true)
        .with_skip_micro_batch(true);
    let ema = EmaConfig::new()
        .with_momentum(0.75)
        .with_overwrite_frequency(Some(3))
        .with_validation(true);
    ScaledOptimizerConfig::new()
        .with_scaler(Some(config()))
        .with_clip(Some(GradientClip::GlobalNorm(1.5)))
        .with_clip_groups(groups)
        .with_accumulation(Some(window))
        .with_ema(Some(ema))
}

fn scaled<O: ModuleOptim>(optim: O) -> ScaledOptimizer<O> {
    ScaledOptimizer::new(optim, GradScaler::new(settings()).unwrap())
}

pub fn adam() -> ScaledOptimizer<ModuleOptimizer> {
    scaled(AdamConfig::new().init())
}

pub fn masters() -> ScaledOptimizer<MasterWeights> {
    scaled(MasterWeights::new(AdamConfig::new().build()))
}

/// Adam, but momentum for the bias.
pub fn groups() -> ScaledOptimizer<ModuleOptimizer> {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let bias = ParamGroup::from_predicate("bias");
    let optim = AdamConfig::new().init();
    scaled(optim.with_group(bias, momentum.build(), None))
}

/// Adam with everything around a step: windows of four micro-batches, clipping, averages.
pub fn around() -> ScaledOptimizer<ModuleOptimizer> {
    let optim = adam().with_accumulation(4);
    let clip = GradientClip::GlobalNorm(0.5);
    let ema = EmaConfig::new().with_momentum(0.75);
    optim.with_clipping(clip).with_ema(ema)
}

/// The micro-batch after those that went into the file: two windows are done, the third has two of its four.
pub const NEXT_MICRO_BATCH: usize = 10;
/// With it the third window ends.
pub const LAST_MICRO_BATCH: usize = 11;

/// Writes all files into a folder.
pub fn write(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    config().save(folder.join("config.json")).unwrap();
    scaled_config().save(folder.join("scaled.json")).unwrap();
    let fixed = GradScalerConfig::new().with_init_scale(96.0);
    let fixed = fixed.with_dynamic(false).schedule().unwrap();
    write_json(&folder.join("loss_scale.static.json"), &fixed);

    let mut optim = adam();
    let seven = || (0..NEXT, &[1, 2, 6][..]);
    train(&mut optim, DType::F32, seven(), &folder.join("adam"));
    let (schedule, counters) = (optim.scaler().schedule(), optim.scaler().counters());
    write_json(&folder.join("loss_scale.dynamic.json"), &schedule);
    write_json(&folder.join("counters.json"), &counters);
    let state = GradScaler::from(optim.scaler().clone()).state_dict();
    fs::write(folder.join("state.json"), state).unwrap();
    let record = optim.scaler().to_record();
    record.save(folder.join("scaler.bpk")).unwrap();

    train(&mut masters(), DType::F16, seven(), &folder.join("masters"));
    train(&mut groups(), DType::F32, seven(), &folder.join("groups"));
    let windows = (0..NEXT_MICRO_BATCH, &[5][..]);
    train(&mut around(), DType::F32, windows, &folder.join("around"));
}

/// Trains with these overflows, and writes `{stem}.optimizer.bpk` and `{stem}.model.bpk`.
fn train<O: ModuleOptim>(
    optim: &mut ScaledOptimizer<O>,
    dtype: DType,
    (steps, overflows): (Range<usize>, &[usize]),
    stem: &Path,
) {
    let small = Small::new(dtype).train(optim, steps, overflows);
    optim.save(stem.with_extension("optimizer.bpk")).unwrap();
    small.save_file(stem.with_extension("model.bpk")).unwrap();
}

fn write_json(path: &Path, value: &impl Serialize) {
    fs::write(path, serde_json::to_string_pretty(value).unwrap()).unwrap();
}
