//! How fast a GPT trains on synthetic tokens in f32, f16, f16 with loss scaling and bf16.
//!
//! ```sh
//! cargo bench -p gpt --bench training                                              # Flex, a tiny network: seconds
//! BURN_DEVICE=wgpu cargo bench -p gpt --bench training --features wgpu
//! BURN_DEVICE=cuda cargo bench -p gpt --bench training --features cuda -- --size gpt2
//! ```
//!
//! `--captured` has the device record a whole step of `FusedAdam` and replay it, so that the host's share of a step is gone; `--checkpointing`
//! computes activations again in the backward pass.
//!
//! All train with Adam on the same tokens. Only `f16-scaled` has a loss scale: its optimizer tests all gradients, and reads the result. The
//! others have Burn's optimizer and nothing of ours but `autocast`, so that what the scaler costs is the difference between `f16` and
//! `f16-scaled`. `torch_training_peer.py` does the same in torch.

#[path = "../../../kernels-cubecl/benches/gradients/launches.rs"]
mod launches;
#[path = "../../../kernels-cubecl/benches/gradients/save.rs"]
mod save;

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use burn_amp::{
    GradScalerConfig, MixedPrecision, ScaledOptimizer,
    optim::{CapturedStep, FusedAdam},
};
use clap::{Parser, ValueEnum};
use gpt::{
    Result,
    model::{Gpt, Size},
    training::Run,
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

#[derive(Parser)]
struct Options {
    /// The network; each of its numbers can be given by itself
    #[arg(long, value_enum, default_value_t = Network::Tiny)]
    size: Network,
    /// Words
    #[arg(long)]
    vocabulary: Option<usize>,
    /// Tokens that the network sees at once
    #[arg(long)]
    context: Option<usize>,
    /// Values of a token
    #[arg(long)]
    width: Option<usize>,
    /// Heads of attention
    #[arg(long)]
    heads: Option<usize>,
    /// Blocks
    #[arg(long)]
    layers: Option<usize>,
    /// Windows of `context` tokens in a step
    #[arg(long)]
    batch: Option<usize>,
    /// What to measure, with commas between
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,f16-scaled,bf16")]
    precision: Vec<Run>,
    /// Steps of a round that are timed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Rounds, in which the precisions take turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The optimizer is `FusedAdam`, and not Burn's `Adam`
    #[arg(long)]
    fused: bool,
    /// The device records a step of `FusedAdam` once and replays it: the host's share of a step is gone
    #[arg(long)]
    captured: bool,
    /// Burn's gradient checkpointing
    #[arg(long)]
    checkpointing: bool,
    /// Writes the table to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The output of torch_training_peer.py, for a column of ratios
    #[arg(long, value_name = "FILE")]
    torch: Option<PathBuf>,
    /// Cargo says so; it means nothing here
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn way(&self) -> String {
        let way = match (self.captured, self.fused) {
            (true, _) => "captured steps of FusedAdam",
            (false, true) => "FusedAdam",
            (false, false) => "Adam",
        };
        let checkpointing = if self.checkpointing {
            ", checkpointing"
        } else {
            ""
        };
        format!("{way}{checkpointing}")
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Network {
    /// Of 130 thousand parameters
    Tiny,
    /// Of 14 million
    Small,
    /// GPT-2's smallest, of 124 million
    Gpt2,
}

/// What is trained, in both JSON files.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Case {
    vocabulary: usize,
    context: usize,
    width: usize,
    heads: usize,
    layers: usize,
    batch: usize,
}

impl Case {
    fn new(options: &Options) -> Result<Self> {
        let [vocabulary, context, width, heads, layers, batch] = match options.size {
            Network::Tiny => [512, 32, 64, 4, 2, 4],
            Network::Small => [8192, 256, 256, 8, 15, 8],
            Network::Gpt2 => [50_257, 1024, 768, 12, 12, 8],
        };
        let case = Self {
            vocabulary: options.vocabulary.unwrap_or(vocabulary),
            context: options.context.unwrap_or(context),
            width: options.width.unwrap_or(width),
            heads: options.heads.unwrap_or(heads),
            layers: options.layers.unwrap_or(layers),
            batch: options.batch.unwrap_or(batch),
        };
        let numbers = [
            ("vocabulary", case.vocabulary),
            ("context", case.context),
            ("width", case.width),
            ("heads", case.heads),
            ("layers", case.layers),
            ("batch", case.batch),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(format!("--{name} is 0: at least 1 is needed").into());
        }
        if !case.width.is_multiple_of(case.heads) {
            let (width, heads) = (case.width, case.heads);
            return Err(format!("--width {width} is no multiple of --heads {heads}").into());
        }
        Ok(case)
    }

    fn network(&self, device: &Device) -> Gpt {
        device.seed(0);
        let size = Size {
            context: self.context,
            width: self.width,
            heads: self.heads,
            layers: self.layers,
            tied: true,
        };
        Gpt::new(self.vocabulary, size, device)
    }

    /// Tokens without a meaning, and as many to be told from them.
    fn tokens(&self, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
        let token = |index: usize| ((index as u32).wrapping_mul(2_654_435_761) >> 16) as usize;
        let count = self.batch * self.context;
        let token = |index: usize| (token(index) % self.vocabulary) as i64;
        let input: Vec<i64> = (0..count).map(token).collect();
        let next: Vec<i64> = (1..=count).map(token).collect();
        let input = TensorData::new(input, [self.batch, self.context]);
        let next = TensorData::new(next, [count]);
        (
            Tensor::from_data(input, device),
            Tensor::from_data(next, device),
        )
    }
}

enum Optimizer {
    Plain(ModuleOptimizer),
    Scaled(Box<ScaledOptimizer<ModuleOptimizer>>),
    Fused(FusedAdam),
    ScaledFused(Box<ScaledOptimizer<FusedAdam>>),
}

impl Optimizer {
    /// With a loss scale if there is one.
    fn new(amp: Option<&MixedPrecision>, fused: bool) -> Self {
        let adam = AdamConfig::new();
        match (amp, fused) {
            (None, false) => Self::Plain(adam.init()),
            (None, true) => Self::Fused(FusedAdam::new(adam)),
            (Some(amp), false) => Self::Scaled(Box::new(ScaledOptimizer::new(adam.init(), amp))),
            (Some(amp), true) => {
                Self::ScaledFused(Box::new(ScaledOptimizer::new(FusedAdam::new(adam), amp)))
            }
        }
    }

    fn step(&mut self, lr: f64, model: Gpt, grads: GradientsParams) -> Result<Gpt> {
        Ok(match self {
            Self::Plain(optimizer) => optimizer.step(lr, model, grads),
            Self::Scaled(optimizer) => optimizer.try_step(lr, model, grads)?,
            Self::Fused(optimizer) => optimizer.step(lr, model, grads),
            Self::ScaledFused(optimizer) => optimizer.try_step(lr, model, grads)?,
        })
    }
}

type Batch = (Tensor<2, Int>, Tensor<1, Int>);
type Replayed = CapturedStep<Gpt, Batch, FusedAdam, Box<dyn FnMut(&Gpt, Batch) -> Tensor<1>>>;

fn loss_of(model: &Gpt, amp: Option<&MixedPrecision>, (input, next): Batch) -> Tensor<1> {
    let logits = match amp {
        Some(amp) => amp.autocast(input, |input| model.forward(input)),
        None => model.forward(input),
    };
    let loss = CrossEntropyLossConfig::new().init(&next.device());
    loss.forward(logits, next)
}

/// The precision of a captured step, which needs a loss scale by which the device decides the step: one that stays 1 where none is needed.
fn with_scale(run: Run) -> Result<MixedPrecision> {
    let one = GradScalerConfig::new()
        .with_init_scale(1.0)
        .with_dynamic(false);
    let precision = run.precision()?;
    Ok(match run {
        Run::F16Scaled => precision,
        _ => precision.with_scaler(one)?,
    })
}

/// A run in progress.
struct Trainer {
    amp: Option<MixedPrecision>,
    way: Way,
    batch: Batch,
    /// Of the last step, before it.
    loss: Option<Tensor<1>>,
}

/// How its steps are made.
enum Way {
    /// The model is away while a step has it, and after one that has failed.
    ByOne(Option<Box<Gpt>>, Box<Optimizer>),
    Replayed(Box<Replayed>),
}

impl Trainer {
    fn new(run: Run, case: &Case, options: &Options, device: &Device) -> Result<Self> {
        let mut device = device.clone().autodiff();
        if options.checkpointing {
            device = device.gradient_checkpointing();
        }
        let mut model = case.network(&device);
        let amp = match (run, options.captured) {
            (_, true) => Some(with_scale(run)?),
            (Run::F32, false) => None,
            (_, false) => Some(run.precision()?),
        };
        if let Some(amp) = &amp {
            amp.check_device(&device)?;
            model = model.apply_reparameterization(amp.clone());
        }
        let batch = case.tokens(&device);
        let way = match &amp {
            Some(amp) if options.captured => {
                let optim = ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()), amp);
                let amp = amp.clone();
                let loss = move |model: &Gpt, batch| loss_of(model, Some(&amp), batch);
                let step = CapturedStep::new(model, optim, Box::new(loss) as _)?;
                Way::Replayed(Box::new(step))
            }
            _ => {
                let scaler = amp.as_ref().filter(|_| run == Run::F16Scaled);
                let optimizer = Optimizer::new(scaler, options.fused);
                Way::ByOne(Some(Box::new(model)), Box::new(optimizer))
            }
        };
        Ok(Self {
            amp,
            way,
            batch,
            loss: None,
        })
    }

    fn step(&mut self) -> Result<()> {
        let (lr, batch) = (3e-4, self.batch.clone());
        self.loss = Some(match &mut self.way {
            Way::Replayed(step) => step.step(lr, batch)?,
            Way::ByOne(model, optimizer) => {
                let own = *model.take().ok_or("an earlier step has failed")?;
                let loss = loss_of(&own, self.amp.as_ref(), batch);
                let grads = GradientsParams::from_grads(loss.backward(), &own);
                *model = Some(Box::new(optimizer.step(lr, own, grads)?));
                loss.inner()
            }
        });
        Ok(())
    }

    fn parameters(&self) -> usize {
        match &self.way {
            Way::ByOne(model, _) => model.as_ref().map_or(0, |model| model.num_params()),
            Way::Replayed(step) => step.model().num_params(),
        }
    }
}

/// What one precision took, round by round.
struct Measured {
    run: Run,
    /// Of a step.
    seconds: Vec<f64>,
    /// In a step, on a device that counts them.
    launches: Option<u32>,
    bytes: u64,
    left_bytes: u64,
    loss: f32,
}

impl Measured {
    fn new(run: Run) -> Self {
        Self {
            run,
            seconds: Vec::new(),
            launches: None,
            bytes: 0,
            left_bytes: 0,
            loss: f32::NAN,
        }
    }

    /// One round, with a network of its own.
    fn round(&mut self, case: &Case, options: &Options, device: &Device) -> Result<usize> {
        let sync = || {
            device
                .sync()
                .map_err(|error| format!("{device:?}: {error}"))
        };
        // What is dropped may still be in a queue, and memory of it in a pool.
        sync()?;
        memory::forget(device);
        sync()?;
        self.left_bytes = memory::most(device);
        let mut trainer = Trainer::new(self.run, case, options, device)?;
        // They compile and allocate, and one is recorded; from the second on, the optimizer has a state.
        for _ in 0..2 {
            trainer.step()?;
        }
        sync()?;
        let (counted, launches) = launches::count(memory::of_device(device).is_some(), || {
            trainer.step()?;
            Ok::<_, Box<dyn std::error::Error>>(sync()?)
        });
        counted?;
        let start = Instant::now();
        for _ in 0..options.steps {
            trainer.step()?;
        }
        sync()?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(options.steps);
        self.seconds.push(seconds);
        self.launches = launches;
        self.bytes = self.bytes.max(memory::most(device));
        self.loss = trainer.loss.take().map_or(f32::NAN, Tensor::into_scalar);
        Ok(trainer.parameters())
    }
}

/// The most memory that was held since [`forget`]: what CubeCL reserved on its device, or this process has had in all.
mod memory {
    use burn::tensor::Device;
    use std::fs;

    pub fn of_device(device: &Device) -> Option<u64> {
        device.memory_pool_usage().map(|usage| usage.bytes_reserved)
    }

    pub fn forget(device: &Device) {
        device.memory_cleanup();
        // Linux sets the peak back to what is held now. Elsewhere it stays.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    pub fn most(device: &Device) -> u64 {
        of_device(device).unwrap_or_else(|| {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kilobytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
            kilobytes.map_or(0, |text| text.parse::<u64>().unwrap_or(0) << 10)
        })
    }
}

/// A row of both JSON files.
#[derive(Serialize, Deserialize)]
struct Row {
    precision: String,
    /// Of a step: the median over the rounds.
    seconds: f64,
    tokens_per_second: f64,
    /// Of the step with a loss scale: what it takes longer than that without, as a share of its time. The median over the rounds.
    scaler_share: Option<f64>,
    launches: Option<u32>,
    /// Beside what was held before the first network was.
    peak_bytes: u64,
    /// Of them, those that an earlier network had left behind: should be few.
    #[serde(default)]
    left_bytes: u64,
    loss: f32,
}

#[derive(Serialize, Deserialize)]
struct File {
    program: String,
    device: String,
    /// How steps are made.
    way: String,
    case: Case,
    parameters: usize,
    rows: Vec<Row>,
}

impl File {
    fn load(path: &Path) -> Result<Self> {
        let error = |error: String| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
        Ok(serde_json::from_str(&text).map_err(|e| error(e.to_string()))?)
    }

    fn print(&self, torch: Option<&Self>) {
        let peer = |row: &Row| {
            let of = |name: &str| torch?.rows.iter().find(|other| other.precision == name);
            // CubeCL multiplies f32 as tf32 where there are tensor cores.
            let alike = (row.precision == "f32").then(|| of("tf32")).flatten();
            Some(row.seconds / alike.or_else(|| of(&row.precision))?.seconds)
        };
        let full = self.rows.iter().find(|row| row.precision == name(Run::F32));
        let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        println!(
            "{:10} {:>12} {:>10} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9}",
            "precision",
            "tokens/s",
            "ms/step",
            "/ f32",
            "/ torch",
            "scaler",
            "launches",
            "peak MiB",
            "loss"
        );
        for row in &self.rows {
            let share = row
                .scaler_share
                .map(|share| format!("{:.1} %", 100.0 * share));
            println!(
                "{:10} {:>12.0} {:>10.2} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9.4}",
                row.precision,
                row.tokens_per_second,
                1e3 * row.seconds,
                ratio(full.map(|full| row.seconds / full.seconds)),
                ratio(peer(row)),
                share.unwrap_or_default(),
                row.launches.map_or("-".into(), |count| count.to_string()),
                row.peak_bytes >> 20,
                row.loss,
            );
        }
    }
}

fn name(run: Run) -> String {
    let value = run.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

fn main() {
    if let Err(error) = run(&Options::parse()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<()> {
    let case = Case::new(options)?;
    let torch = options.torch.as_deref().map(File::load).transpose()?;
    if let Some(torch) = &torch
        && torch.case != case
    {
        return Err(format!("torch trained {:?}, and this is {case:?}", torch.case).into());
    }
    let device = Device::default();
    let before = memory::most(&device);
    let mut all = Vec::new();
    for run in &options.precision {
        let half = match run {
            Run::F32 => DType::F32,
            Run::Bf16 => DType::BF16,
            Run::F16 | Run::F16Scaled => DType::F16,
        };
        if device.supports_dtype(half) {
            all.push(Measured::new(*run));
        } else {
            eprintln!("{}: this device has no {half:?}", name(*run));
        }
    }
    let mut file = File {
        program: "burn-amp".into(),
        device: format!("{device:?}"),
        way: options.way(),
        case,
        parameters: 0,
        rows: Vec::new(),
    };
    for _ in 0..options.rounds {
        for index in 0..all.len() {
            file.parameters = all[index].round(&case, options, &device)?;
            // Each time: whoever stops the bench keeps what was measured.
            file.rows = rows(&all, &case, before);
            if let Some(path) = &options.json {
                save::save(path, &file)?;
            }
        }
    }
    println!(
        "{}, {case:?}, {} parameters, {}; medians of {} rounds of {} steps\n",
        file.device, file.parameters, file.way, options.rounds, options.steps
    );
    file.print(torch.as_ref());
    Ok(())
}

/// Of those that were measured so far.
fn rows(all: &[Measured], case: &Case, before: u64) -> Vec<Row> {
    let without = all.iter().find(|measured| measured.run == Run::F16);
    let tokens = (case.batch * case.context) as f64;
    let row = |measured: &Measured| {
        let own = median(&measured.seconds);
        // Of steps that ran side by side: the machine may have been slower in another round.
        let without = without.filter(|_| measured.run == Run::F16Scaled);
        let shares = without.map(|without| {
            let pairs = without.seconds.iter().zip(&measured.seconds);
            pairs
                .map(|(without, with)| 1.0 - without / with)
                .collect::<Vec<_>>()
        });
        Row {
            precision: name(measured.run),
            seconds: own,
            tokens_per_second: tokens / own,
            scaler_share: shares.as_deref().map(median),
            launches: measured.launches,
            peak_bytes: measured.bytes.saturating_sub(before),
            left_bytes: measured.left_bytes.saturating_sub(before),
            loss: measured.loss,
        }
    };
    let measured = all.iter().filter(|measured| !measured.seconds.is_empty());
    measured.map(row).collect()
}
