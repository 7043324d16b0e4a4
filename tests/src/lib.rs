//! What the tests of burn-amp share: the reference traces, modules and gradients made by hand, what is stored of them in bits, logs and panics.

mod bits;
mod child;
mod files;
mod fill;
pub mod forge;
mod logs;
mod panics;
mod player;
pub mod prelude;
pub mod ranks;
pub mod readers;
pub mod run;
mod says;
#[path = "../../kernels-cubecl/tests/backend/skipped.rs"]
mod skipped;
pub mod small;
pub mod trial;
mod waited;

pub use bits::{
    Pack, SECTION, Values, contents, f32s, gradients_by_path, numbers, pack, parameters, refused,
    state, stored, values,
};
pub use child::{child, child_folder, said_in_child};
pub use files::Files;
pub use fill::{address, device, fill, fill_with_ids, flex, gradients, on_flex, random, wave};
pub use logs::{captured, listen, logs};
pub use panics::{panic_message, quietly};
pub use player::Player;
pub use run::{Run, Snapshot, resumed};
pub use says::{is_error, no_warning, only, says, warns_once};
pub use skipped::skipped;
pub use waited::{Observed, Waited};

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, FloatDType};
use burn_amp::{
    AmpError, GradScalerConfig, MixedPrecision, ScaledOptimizer, StepOutcome,
    gradients::GradientStatus, gradients::ScaledGradients, optim::Scaler, schedule::Evidence,
    torch::GradScaler,
};
use serde::{Deserialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Settings of a loss scale that begins here.
pub fn at_scale(scale: f64) -> GradScalerConfig {
    GradScalerConfig::new().with_init_scale(scale)
}

/// A scaler with all defaults.
pub fn default_scaler() -> GradScaler {
    GradScaler::new(GradScalerConfig::new()).unwrap()
}

/// In f16 where the default device has it; elsewhere a scaler tests all the same, in f32.
pub fn narrowest() -> MixedPrecision {
    let half = MixedPrecision::f16().check_device(&Device::default());
    MixedPrecision::new(half.map_or(FloatDType::F32, |()| FloatDType::F16))
}

/// f16 under these settings of its loss scale.
pub fn f16_under(settings: GradScalerConfig) -> MixedPrecision {
    MixedPrecision::f16().with_scaler(settings).unwrap()
}

/// Plain SGD under these settings.
pub fn sgd_under(settings: GradScalerConfig) -> ScaledOptimizer {
    ScaledOptimizer::new(SgdConfig::new().init(), GradScaler::new(settings).unwrap())
}

/// Gradients that were made by hand, as those of a loss that `scaler` has scaled.
pub fn scaled_by_hand(scaler: &Scaler, grads: GradientsParams) -> ScaledGradients {
    // A scaler refuses gradients where nothing was scaled before.
    scaler.scale(());
    scaler.scaled(grads).unwrap()
}

/// Reads every file in `tests/reference/` whose name starts with `prefix` and ends with `.json`. The variable `BURN_AMP_REFERENCE` names
/// another folder: test programs also run where this one is not.
///
/// # Panics
///
/// If there is none, or one cannot be read as `T`: a parity test without a trace would prove nothing.
pub fn reference<T: DeserializeOwned>(prefix: &str) -> Vec<(String, T)> {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference");
    let folder = env::var_os("BURN_AMP_REFERENCE").map_or_else(own, PathBuf::from);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let prefix = format!("{prefix}.");
    let is_one = |name: &String| name.starts_with(&prefix) && name.ends_with(".json");
    let mut names: Vec<String> = names.filter(is_one).collect();
    names.sort();
    assert!(!names.is_empty(), "no traces match {prefix}*.json");
    let read = |name: String| (name.clone(), json(folder.join(name)));
    names.into_iter().map(read).collect()
}

/// What a file holds as JSON.
pub fn json<T: DeserializeOwned>(path: impl AsRef<Path>) -> T {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What the files of a prefix have in their list `traces`, each with its place for messages.
pub fn traces<T: DeserializeOwned>(prefix: &str) -> Vec<(String, T)> {
    #[derive(Deserialize)]
    struct File<T> {
        traces: Vec<T>,
    }

    let files = reference::<File<T>>(prefix).into_iter();
    let traces = files.flat_map(|(name, file)| {
        let numbered = file.traces.into_iter().enumerate();
        numbered.map(move |(index, trace)| (format!("{name}, trace {index}"), trace))
    });
    traces.collect()
}

/// A trace's number: JSON has no infinity and no NaN, which are texts.
pub fn number(value: &serde_json::Value) -> f64 {
    match value {
        serde_json::Value::String(text) => text.parse().unwrap(),
        value => value.as_f64().unwrap(),
    }
}

/// That of `PROPTEST_RNG_SEED`, or the day's: each day draws what is its own, and a failure of the day comes again.
pub fn seed() -> u64 {
    let given = std::env::var("PROPTEST_RNG_SEED").ok();
    let days = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 60 * 60);
    given.map_or_else(days, |seed| seed.parse().unwrap())
}

/// None for null, and for what is not there.
pub fn optional(value: &serde_json::Value) -> Option<f64> {
    (!value.is_null()).then(|| number(value))
}

/// The rows of a table, whose cells stand between ` > `.
pub fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.trim().lines();
    lines.map(|line| line.split(" > ").collect::<Vec<_>>().try_into().unwrap())
}

/// Sets one of the five fields that PyTorch's scaler has.
///
/// # Errors
///
/// Those of the setter.
pub fn set_field(scaler: &mut Scaler, field: &str, value: f64) -> Result<(), AmpError> {
    match field {
        "loss_scale" => scaler.set_loss_scale(value),
        "growth_factor" => scaler.set_growth_factor(value),
        "backoff_factor" => scaler.set_backoff_factor(value),
        "growth_tracker" => scaler.set_growth_tracker(value as u32),
        "growth_interval" => scaler.set_growth_interval(value as u32),
        other => panic!("unknown field {other}"),
    }
}

/// The evidence of a step that overflows, or of one whose gradients have shown this, or were not measured.
pub fn evidence(overflow: bool, status: Option<&GradientStatus>) -> Evidence {
    match overflow {
        true => Evidence::Overflow,
        false => Evidence::Finite(status.map(GradientStatus::measures)),
    }
}

/// What a step did whose gradients overflowed, or did not.
pub fn outcome(overflow: bool) -> StepOutcome {
    use StepOutcome::{Skipped, Stepped};
    if overflow { Skipped } else { Stepped }
}

/// Programs that must not compile. `tests/compile` looks at what the compiler says.
#[cfg(doctest)]
mod mistakes {
    macro_rules! mistake {
        ($($name:ident: $path:literal,)*) => {
            $(#[doc = "```compile_fail"] #[doc = include_str!($path)] #[doc = "```"] mod $name {})*
        };
    }

    mistake! {
        optimizer_in_optimizer: "../compile/optimizer_in_optimizer_mistake.rs",
        gradients_of_backward: "../compile/taking_a_step_with_gradients_of_backward_mistake.rs",
        unknown_batch: "../compile/unknown_batch_mistake.rs",
        unscaling_twice: "../compile/unscaling_twice_mistake.rs",
    }
}

/// The README and the chapters of the book, whose code must compile and run.
#[cfg(doctest)]
mod documents {
    macro_rules! document {
        ($($name:ident: $path:literal,)*) => {
            $(#[doc = include_str!(concat!("../../docs/src/", $path))] mod $name {})*
        };
    }

    document! {
        readme: "../../README.md", start: "start.md", how: "how.md", precision: "precision.md",
        settings: "settings.md", accumulation: "accumulation.md", clipping: "clipping.md",
        averaging: "averaging.md", fused: "fused.md", captured: "captured.md", hooks: "hooks.md",
        pipeline: "pipeline.md", losses: "losses.md", rescaled: "rescaled.md", report: "report.md",
        records: "records.md", pytorch: "pytorch.md", grad_scaler: "grad-scaler.md",
        mapping: "mapping.md", moving: "moving.md", devices: "devices.md",
    }
}

/// The chapter with blocks that need MPI, and remote devices.
#[cfg(all(doctest, feature = "mpi", feature = "remote"))]
#[doc = include_str!("../../docs/src/several.md")]
mod several {}
