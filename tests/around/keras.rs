//! Keras's `LossScaleOptimizer`, option by option, through `ScaledOptimizerConfig`.

use serde::Deserialize;

use crate::support::*;

/// The relative error allowed in values.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct File {
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    optimizer: String,
    options: Options,
    initial_scale: f64,
    dynamic_growth_steps: u32,
    init: Variables,
    steps: Vec<Step>,
    finalized: Variables,
}

/// A weight of shape `[2, 3]` and a bias of shape `[4]`.
#[derive(Deserialize)]
struct Variables([[f32; 3]; 2], [f32; 4]);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    clipnorm: Option<f64>,
    clipvalue: Option<f64>,
    global_clipnorm: Option<f64>,
    weight_decay: Option<f32>,
    use_ema: Option<bool>,
    ema_momentum: Option<f64>,
    ema_overwrite_frequency: Option<u32>,
    gradient_accumulation_steps: Option<u32>,
    loss_scale_factor: Option<f64>,
}

#[derive(Deserialize)]
struct Step {
    unscaled_grads: Variables,
    kind: String,
    scale_used: f32,
    scale_after: f32,
    counter: u32,
    iterations: u64,
    values: Variables,
}

impl Variables {
    fn weight(&self) -> [f32; 6] {
        std::array::from_fn(|index| self.0[index / 3][index % 3])
    }

    fn all(&self) -> Vec<f32> {
        [self.weight().as_slice(), self.1.as_slice()].concat()
    }
}

impl Run {
    fn name(&self) -> String {
        format!("{}, {:?}", self.optimizer, self.options)
    }

    /// Keras's decay is decoupled for every optimizer. Burn has that for plain SGD (where it is the same as an L2
    /// penalty) and for AdamW; with momentum its penalty goes through the velocity.
    fn has_another_decay(&self) -> bool {
        self.optimizer == "sgdm" && self.options.weight_decay.is_some()
    }

    fn inner(&self) -> (ModuleOptimizer, f64) {
        let decay = self.options.weight_decay;
        let coupled = decay.map(WeightDecayConfig::new);
        let sgd = SgdConfig::new().with_weight_decay(coupled);
        match (self.optimizer.as_str(), decay) {
            ("sgd", _) => (sgd.init(), 0.1),
            ("sgdm", _) => {
                let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
                (sgd.with_momentum(Some(momentum)).init(), 0.1)
            }
            ("adam", None) => (AdamConfig::new().with_epsilon(1e-7).init(), 0.01),
            ("adam", Some(decay)) => {
                let adam = AdamWConfig::new().with_epsilon(1e-7);
                (adam.with_weight_decay(decay).init(), 0.01)
            }
            (other, _) => panic!("unknown optimizer {other}"),
        }
    }

    /// The run's options, saved to JSON and loaded again.
    fn optimizer(&self) -> (ScaledOptimizer<ModuleOptimizer>, f64) {
        let (inner, lr) = self.inner();
        let options = &self.options;
        let clip = (options.clipnorm.map(GradientClip::Norm))
            .or(options.clipvalue.map(GradientClip::Value))
            .or(options.global_clipnorm.map(GradientClip::GlobalNorm));
        let windows = |n| AccumulationConfig::new(n).with_skip_micro_batch(true);
        let ema = options.use_ema.map(|_| {
            EmaConfig::new()
                .with_momentum(options.ema_momentum.unwrap_or(0.99))
                .with_overwrite_frequency(options.ema_overwrite_frequency)
        });
        // Keras's LossScaleOptimizer switches its inner optimizer's `loss_scale_factor` off: its own scale counts.
        let scaler = at_scale(self.initial_scale).with_growth_interval(self.dynamic_growth_steps);
        let config = ScaledOptimizerConfig::new()
            .with_scaler(Some(scaler))
            .with_clip(clip)
            .with_accumulation(options.gradient_accumulation_steps.map(windows))
            .with_ema(ema);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        config.save(&path).unwrap();
        let loaded = ScaledOptimizerConfig::load(&path).unwrap();
        let scaler = loaded.scaler.unwrap().init().unwrap();
        (loaded.init(inner, scaler).unwrap(), lr)
    }
}

/// What the place of Adam's epsilon may have moved each value by, so far.
///
/// Keras adds it to `sqrt(v)`, Burn (as PyTorch, and the paper's first form) to `sqrt(v / (1 - beta_2^t))`: Burn's is smaller,
/// by `c = sqrt(1 - beta_2^t)`, in the same place. A step then differs by no more than its own length times
/// `epsilon * (1 - c) / sqrt(v)`.
#[derive(Default)]
struct Epsilon {
    steps: i32,
    bound: [f64; 10],
}

impl Epsilon {
    fn add(&mut self, optim: &ScaledOptimizer<ModuleOptimizer>, before: &[f32], after: &[f32]) {
        let tensors = pack(optim.optimizer().into_bytes().unwrap()).tensors;
        let moment = |id: u64| {
            let (_, (dtype, _, bytes)) = &tensors[&format!("{id}.momentum.moment_2")];
            f32s(*dtype, bytes)
        };
        self.steps += 1;
        let smaller = 1.0 - (1.0 - 0.999f64.powi(self.steps)).sqrt();
        for (index, v) in [moment(2001), moment(2002)]
            .concat()
            .into_iter()
            .enumerate()
        {
            let length = f64::from((after[index] - before[index]).abs());
            self.bound[index] += length * 1e-7 * smaller / f64::from(v).sqrt();
        }
    }
}

/// Errors are relative to the largest value of the variable: single ones pass through zero.
fn assert_close(found: &[f32], expected: &[f32], epsilon: &Epsilon, what: &str) {
    for variable in [0..6, 6..10] {
        let largest = expected[variable.clone()]
            .iter()
            .fold(0f32, |max, value| max.max(value.abs()));
        for index in variable {
            let error = f64::from((found[index] - expected[index]).abs());
            let allowed = TOLERANCE * f64::from(largest) + epsilon.bound[index];
            assert!(
                error <= allowed,
                "{what}: {}, but Keras has {}: {error:e} off, {allowed:e} allowed",
                found[index],
                expected[index]
            );
        }
    }
}

fn replay(run: &Run) {
    let (mut optim, lr) = run.optimizer();
    let init = &run.init;
    let mut model = Pair::new(init.weight().to_vec(), init.1.to_vec(), DType::F32);
    let mut epsilon = Epsilon::default();
    for (index, step) in run.steps.iter().enumerate() {
        let at = format!("{}, step {index}", run.name());
        assert_eq!(optim.scaler().loss_scale(), step.scale_used, "{at}");
        let mut weight = step.unscaled_grads.weight();
        weight[4] = match step.kind.as_str() {
            "finite" => weight[4],
            kind => kind.parse().unwrap(),
        };
        let grads = model.gradients((weight, step.unscaled_grads.1), step.scale_used);
        let (before, applied) = (model.values(), optim.scaler().counters().stepped());
        model = optim.step(lr, model, grads);
        let scaler = optim.scaler();
        assert_eq!(scaler.loss_scale(), step.scale_after, "{at}");
        assert_eq!(scaler.growth_tracker(), step.counter, "{at}");
        assert_eq!(scaler.counters().stepped(), step.iterations, "{at}");
        if run.optimizer == "adam" && scaler.counters().stepped() > applied {
            epsilon.add(&optim, &before, &model.values());
        }
        assert_close(&model.values(), &step.values.all(), &epsilon, &at);
    }
    let at = format!("{}, finalized", run.name());
    let model = optim.finalize(model);
    assert_close(&model.values(), &run.finalized.all(), &epsilon, &at);
    // Less than the tolerance itself at a value of 1: the bound must not hide another error.
    for bound in epsilon.bound {
        assert!(bound < TOLERANCE, "{at}: {bound:e}");
    }
}

/// Every run but those with another decay.
#[test]
fn parity_keras() {
    let files = reference::<File>("keras_loss_scale_optimizer");
    let runs = files.iter().flat_map(|(_, file)| &file.runs);
    let runs: Vec<&Run> = runs.filter(|run| !run.has_another_decay()).collect();
    let has: [fn(&Options) -> bool; 8] = [
        |options| options.clipnorm.is_some(),
        |options| options.clipvalue.is_some(),
        |options| options.global_clipnorm.is_some(),
        |options| options.weight_decay.is_some(),
        |options| options.use_ema.is_some(),
        |options| options.ema_overwrite_frequency.is_some(),
        |options| options.gradient_accumulation_steps.is_some(),
        |options| options.loss_scale_factor.is_some(),
    ];
    for (option, has) in has.iter().enumerate() {
        let known = runs.iter().any(|run| has(&run.options));
        assert!(known, "no run with option {option}");
    }
    runs.into_iter().for_each(replay);
}
