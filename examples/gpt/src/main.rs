//! T.
mod model;
mod text;
use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{AdamConfig, GradientsAccumulator, GradientsParams},
    tensor::{
        Device, Int, Tensor,
        activation::{log_softmax, softmax},
    },
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};
use clap::Parser;
use model::Gpt;
use std::time::Instant;
use text::{Text, rows};

#[derive(Parser, Clone)]
struct Args {
    #[arg(long, default_value = "/tmp/ts.txt")]
    file: String,
    #[arg(long, default_value_t = 60000)]
    chars: usize,
    #[arg(long, default_value_t = 64)]
    width: usize,
    #[arg(long, default_value_t = 2)]
    layers: usize,
    #[arg(long, default_value_t = 2)]
    heads: usize,
    #[arg(long, default_value_t = 32)]
    context: usize,
    #[arg(long, default_value_t = 8192)]
    batch_tokens: usize,
    #[arg(long, default_value_t = 1024)]
    micro: usize,
    #[arg(long, default_value_t = 20)]
    steps: usize,
    #[arg(long, default_value_t = 5e-3)]
    lr: f64,
    #[arg(long, default_value = "")]
    precision: String,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, default_value_t = 10)]
    eval: usize,
    #[arg(long)]
    probe: bool,
}

fn amp(name: &str) -> MixedPrecision {
    let off = || {
        GradScalerConfig::new()
            .with_init_scale(1.0)
            .with_dynamic(false)
    };
    match name {
        "f32" => MixedPrecision::f32(),
        "bf16" => MixedPrecision::bf16(),
        "f16" => MixedPrecision::f16().with_scaler(off()).unwrap(),
        _ => MixedPrecision::f16(),
    }
}

/// Sum over tokens.
fn nll(logits: Tensor<2>, targets: Tensor<2, Int>) -> Tensor<1> {
    let n = targets.dims().iter().product::<usize>();
    -log_softmax(logits, 1)
        .gather(1, targets.reshape([n, 1]))
        .sum()
}

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

fn test_loss(model: &Gpt, amp: &MixedPrecision, text: &Text, context: usize) -> f32 {
    let model = model.valid();
    let device = Device::flex();
    let count = (text.test.len() - 1) / context;
    let starts: Vec<usize> = (0..count).map(|i| i * context).collect();
    let mut sum = 0.0;
    for starts in starts.chunks(32) {
        let (x, y) = rows(&text.test, starts, context, &device);
        let logits = amp.autocast(x, |x| model.forward(x));
        sum += nll(logits, y).into_scalar::<f32>();
    }
    sum / (count * context) as f32
}

struct Compare<'a> {
    full: &'a GradientsParams,
    half: &'a GradientsParams,
    path: Vec<String>,
}
impl ModuleVisitor for Compare<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Some(a), Some(b)) = (self.full.get::<D>(param.id), self.half.get::<D>(param.id))
        else {
            return;
        };
        let a = a.into_data().try_to_vec::<f32>().unwrap();
        let b = b.into_data().try_to_vec::<f32>().unwrap();
        let some = a.iter().filter(|v| **v != 0.0).count();
        let lost = a
            .iter()
            .zip(&b)
            .filter(|(a, b)| **a != 0.0 && **b == 0.0)
            .count();
        let norm = a.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let diff = a
            .iter()
            .zip(&b)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum::<f64>()
            .sqrt();
        println!(
            "{:<48} n {:>7} norm {:.2e} lost {:>5.1} % error {:>6.1} %",
            self.path.join("."),
            a.len(),
            norm,
            100.0 * lost as f64 / some as f64,
            100.0 * diff / norm
        );
    }
}

fn grads(
    model: &Gpt,
    amp: &MixedPrecision,
    text: &Text,
    starts: &[usize],
    args: &Args,
    device: &Device,
) -> (GradientsParams, f32) {
    let mut acc = GradientsAccumulator::new();
    let mut total = 0.0;
    for starts in starts.chunks(args.micro / args.context) {
        let (x, y) = rows(&text.train, starts, args.context, device);
        let logits = amp.autocast(x, |x| model.forward(x));
        let loss = nll(logits, y) / args.batch_tokens as f64;
        total += loss.clone().into_scalar::<f32>();
        acc.accumulate(model, GradientsParams::from_grads(loss.backward(), model));
    }
    (acc.grads(), total)
}

fn main() {
    let args = Args::parse();
    let all: String = std::fs::read_to_string(&args.file)
        .unwrap()
        .chars()
        .take(args.chars)
        .collect();
    let text = Text::new(&all);
    println!(
        "vocab {} train {} test {}",
        text.words.len(),
        text.train.len(),
        text.test.len()
    );
    let device = Device::flex().autodiff();
    for name in args.precision.split(',') {
        if name.is_empty() {
            continue;
        }
        device.seed(args.seed);
        let amp = amp(name);
        let plain = Gpt::new(
            text.words.len(),
            args.context,
            args.width,
            args.layers,
            args.heads,
            &device,
        );
        let mut model = plain.apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(
            AdamConfig::new()
                .with_epsilon(1e-8)
                .with_beta_2(0.99)
                .init(),
            &amp,
        );
        let mut rng = Rng(args.seed + 1);
        let mut seconds = 0.0;
        for step in 0..args.steps {
            let starts: Vec<usize> = (0..args.batch_tokens / args.context)
                .map(|_| rng.below(text.train.len() - args.context))
                .collect();
            let start = Instant::now();
            let (g, loss) = grads(&model, &amp, &text, &starts, &args, &device);
            let t = step as f64 / args.steps as f64;
            model = optim.step(args.lr * (1.0 - t).max(0.05), model, g);
            seconds += start.elapsed().as_secs_f64();
            if (step + 1) % args.eval == 0 {
                println!(
                    "{name:<8} step {:>4} train {loss:.3} test {:.3} skipped {} scale {} {:.0} ms",
                    step + 1,
                    test_loss(&model, &amp, &text, args.context),
                    optim.scaler().counters().skipped(),
                    amp.loss_scale(),
                    1e3 * seconds / (step + 1) as f64
                );
            }
            if args.probe && (step == 0 || step + 1 == args.steps) && name == "f32" {
                let few = &starts[..args.micro / args.context];
                let record = model.clone().into_record();
                let (x, _) = rows(&text.train, few, args.context, &device);
                let p = softmax(amp.autocast(x, |x| model.forward(x)), 1).into_data().try_to_vec::<f32>().unwrap();
                for n in [2048, 8192, 16384, 32768, 131072, 524288] {
                    let mut args = args.clone();
                    args.batch_tokens = n;
                    let h = crate::amp("f16");
                    let other = Gpt::new(text.words.len(), args.context, args.width, args.layers, args.heads, &device).load_record(record.clone()).apply_reparameterization(h.clone());
                    let (gf, _) = grads(&model, &amp, &text, few, &args, &device);
                    let (gh, _) = grads(&other, &h, &text, few, &args, &device);
                    let nf = n as f32;
                    let below = |p: &f32| *p / nf <= 2f32.powi(-25);
                    let count = p.iter().filter(|p| below(p)).count() as f64 / p.len() as f64;
                    let mass = p.iter().filter(|p| below(p)).map(|p| f64::from(*p)).sum::<f64>() / (args.micro as f64);
                    println!("-- step {} N {n}: logits below half the smallest: {:.1} % of classes, {:.1} % of probability", step + 1, 100.0 * count, 100.0 * mass);
                    other.visit(&mut Compare { full: &gf, half: &gh, path: vec![] });
                }
            }
        }
    }
}

fn super_amp(name: &str) -> MixedPrecision {
    amp(name)
}
