//! Keras's `LossScaleOptimizer`, option by option, through `ScaledOptimizerConfig`.

use serde_json::from_value;

use crate::{settings, support::*};

/// The relative error allowed in values. Keras adds Adam's epsilon to `sqrt(v)`, Burn (as PyTorch, and the paper's first form) to
/// `sqrt(v / (1 - beta_2^t))`: that moves these by up to half as much.
const TOLERANCE: f64 = 1e-5;

/// The options of Keras that are known here.
const OPTIONS: &str = "clipnorm clipvalue ema_momentum ema_overwrite_frequency global_clipnorm gradient_accumulation_steps \
    loss_scale_factor use_ema weight_decay";

/// The values of a weight of shape `[2, 3]` and a bias of shape `[4]`.
fn variables(value: &Value) -> [f64; 10] {
    let (weight, bias): ([[f64; 3]; 2], [f64; 4]) = from_value(value.clone()).unwrap();
    let values: Vec<f64> = weight.concat().into_iter().chain(bias).collect();
    values.try_into().unwrap()
}

fn inner(run: &Value) -> (ModuleOptimizer, f64) {
    let decay = optional(&run["options"]["weight_decay"]).map(|decay| decay as f32);
    let sgd = SgdConfig::new().with_weight_decay(decay.map(WeightDecayConfig::new));
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let adam_w = AdamWConfig::new().with_epsilon(1e-7);
    match (run["optimizer"].as_str().unwrap(), decay) {
        ("sgd", _) => (sgd.init(), 0.1),
        ("sgdm", _) => (sgd.with_momentum(Some(momentum)).init(), 0.1),
        ("adam", None) => (AdamConfig::new().with_epsilon(1e-7).init(), 0.01),
        ("adam", Some(decay)) => (adam_w.with_weight_decay(decay).init(), 0.01),
        (other, _) => panic!("unknown optimizer {other}"),
    }
}

/// The run's options, through JSON.
fn optimizer(run: &Value) -> (ScaledOptimizer, f64) {
    let (inner, lr) = inner(run);
    let options = &run["options"];
    let number = |name: &str| options[name].as_f64();
    let count = |name: &str| number(name).map(|count| count as u32);
    let clip = (number("clipnorm").map(GradientClip::Norm))
        .or(number("clipvalue").map(GradientClip::Value))
        .or(number("global_clipnorm").map(GradientClip::GlobalNorm));
    let momentum = number("ema_momentum").unwrap_or(0.99);
    let ema = EmaConfig::new().with_momentum(momentum);
    let ema = ema.with_overwrite_frequency(count("ema_overwrite_frequency"));
    let ema = Some(ema).filter(|_| options["use_ema"] == true);
    let windows = count("gradient_accumulation_steps").map(|n| windows(n, true));
    // Keras's LossScaleOptimizer switches its inner optimizer's `loss_scale_factor` off: its own scale counts.
    let growth = run["dynamic_growth_steps"].as_u64().unwrap() as u32;
    let scaler = at_scale(run["initial_scale"].as_f64().unwrap()).with_growth_interval(growth);
    let config = ScaledOptimizerConfig::new().with_scaler(Some(scaler));
    let config = config.with_clip(clip).with_accumulation(windows);
    let loaded = settings::load(&config.with_ema(ema).to_string());
    let scaler = GradScaler::new(loaded.scaler.unwrap()).unwrap();
    (loaded.init(inner, scaler).unwrap(), lr)
}

/// Errors are relative to the largest value of the variable: single ones pass through zero.
fn assert_close(found: &[f64], expected: &Value, what: &str) {
    let expected = variables(expected);
    for variable in [0..6, 6..10] {
        let largest = expected[variable.clone()].iter();
        let largest = largest.fold(0f64, |max, value| max.max(value.abs()));
        for index in variable {
            let (found, expected) = (found[index], expected[index]);
            let is_close = (found - expected).abs() <= TOLERANCE * largest;
            assert!(is_close, "{what}: {found}, but Keras has {expected}");
        }
    }
}

fn replay(run: &Value) {
    let (optim, lr) = optimizer(run);
    let mut trial = Trial::new(optim);
    trial.model = Pair::new(variables(&run["init"]), &device(), DType::F32);
    let name = format!("{}, {}", run["optimizer"], run["options"]);
    for (index, step) in run["steps"].as_array().unwrap().iter().enumerate() {
        let at = format!("{name}, step {index}");
        assert_eq!(f64::from(trial.scale()), step["scale_used"], "{at}");
        let mut values = variables(&step["unscaled_grads"]);
        values[4] = match step["kind"].as_str().unwrap() {
            "finite" => values[4],
            kind => kind.parse().unwrap(),
        };
        let grads = trial.scaled(values);
        trial.model = trial.optim.step(lr, trial.model, grads);
        assert_eq!(f64::from(trial.scale()), step["scale_after"], "{at}");
        let tracker = trial.optim.scaler().growth_tracker();
        assert_eq!(tracker, step["counter"], "{at}");
        assert_eq!(trial.counters().stepped(), step["iterations"], "{at}");
        assert_close(&trial.values(), &step["values"], &at);
    }
    let model = trial.optim.finalize(trial.model);
    assert_close(&model.values(), &run["finalized"], &name);
}

/// Every run but those with another decay. Keras's is decoupled for every optimizer. Burn has that for plain SGD (where it is the same as an
/// L2 penalty) and for AdamW; with momentum its penalty goes through the velocity.
#[test]
fn parity_keras() {
    let mut options = BTreeSet::new();
    for (_, file) in reference::<Value>("keras_loss_scale_optimizer") {
        let runs = file["runs"].as_array().unwrap().iter();
        let decays = |run: &Value| !run["options"]["weight_decay"].is_null();
        for run in runs.filter(|run| run["optimizer"] != "sgdm" || !decays(run)) {
            replay(run);
            options.extend(run["options"].as_object().unwrap().keys().cloned());
        }
    }
    let expected = OPTIONS.split(' ').map(String::from);
    assert_eq!(options, expected.collect());
}
