//! What happens on one rank only, and what all decide: the same, bit for bit.

use super::job;
use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;

/// What the last rank meets in one step.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    Overflow,
    InfiniteOutput,
    NanLoss,
    NoGradients,
    EmptyBatch,
    /// A loss that is far above the others.
    Spike,
}

/// The step in which it meets it, of so many.
const AT: usize = 9;
const STEPS: usize = 12;

/// Name, fault, steps, skips, steps that a guard rejected, dropped micro-batches, bad losses, and the last loss scale.
const CASES: &str = "
clean > none > 12 0 0 0 0 16384
overflow > overflow > 11 1 0 0 0 4096
infinite output > output > 11 1 0 0 1 8192
NaN loss > loss > 11 1 0 0 1 8192
no gradients > missing > 12 0 0 0 0 16384
empty batch > empty > 12 0 0 0 0 16384
fused, overflow > overflow > 11 1 0 0 0 4096
dropped micro-batch > overflow > 11 0 0 1 0 65536
guard > spike > 11 0 1 0 0 8192
";

fn fault(name: &str) -> Fault {
    match name {
        "none" => Fault::Nothing,
        "overflow" => Fault::Overflow,
        "output" => Fault::InfiniteOutput,
        "loss" => Fault::NanLoss,
        "missing" => Fault::NoGradients,
        "empty" => Fault::EmptyBatch,
        "spike" => Fault::Spike,
        other => panic!("no fault is called {other}"),
    }
}

#[test]
fn all_ranks_decide_the_same() {
    for ranks in [2, 3] {
        let Some(written) = job::run(ranks, &format!("{}::rank", module_path!())) else {
            return;
        };
        for [name, _, expected] in rows(CASES) {
            let first = &written[0][name];
            let line = first.lines().next().unwrap();
            assert_eq!(line, expected, "{name}, {ranks} ranks: {first}");
            for (rank, other) in written.iter().enumerate() {
                assert_eq!(&other[name], first, "{name}: rank {rank} of {ranks}");
            }
        }
    }
}

/// Of more than a bucket, of gradients on one rank or on none, and in f16.
#[test]
fn averages_have_the_same_bits_on_all_ranks() {
    for ranks in [2, 3] {
        let Some(written) = job::run(ranks, &format!("{}::large", module_path!())) else {
            return;
        };
        let mean = (1..=ranks).sum::<usize>() as f32 / ranks as f32;
        let expected = format!("{mean:?} {:?} none {mean:?}", 3.0 / ranks as f32);
        for said in written {
            assert_eq!(said["averages"], expected, "{ranks} ranks");
        }
    }
}

/// Three parameters that do not fit into one bucket, and a small one.
#[derive(Module, Debug)]
struct Large {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
    third: Param<Tensor<1>>,
    small: Param<Tensor<2>>,
}

#[test]
#[ignore = "a rank"]
fn large() {
    job::rank(|peers| {
        let device = Device::flex();
        let large = |values| Param::from_tensor(Tensor::<1>::zeros([values], &device));
        let model = Large {
            first: large(5_000_000),
            second: large(5_000_000),
            third: large(7_000_000),
            small: Param::from_tensor(Tensor::zeros([2, 3], &device)),
        };
        let own = (peers.rank() + 1) as f32;
        let mut grads = GradientsParams::new();
        grads.register::<1>(model.first.id, Tensor::full([5_000_000], own, &device));
        if peers.rank() + 1 == peers.size() {
            grads.register::<1>(model.second.id, Tensor::full([5_000_000], 3.0, &device));
        }
        let half = Tensor::<2>::full([2, 3], own, &device).cast(FloatDType::F16);
        grads.register::<2>(model.small.id, half);

        let averages = peers.average(&model, grads).unwrap();
        let one_value = |values: Vec<f32>| {
            assert!(values.iter().all(|value| *value == values[0]));
            format!("{:?}", values[0])
        };
        let average = |param: &Param<Tensor<1>>| match averages.get::<1>(param.id) {
            Some(average) => one_value(average.into_data().try_to_vec().unwrap()),
            None => "none".to_string(),
        };
        let [first, second, third] = [&model.first, &model.second, &model.third].map(average);
        let small = averages.get::<2>(model.small.id).unwrap();
        let small = one_value(small.into_data().try_to_vec().unwrap());
        BTreeMap::from([(
            "averages".to_string(),
            format!("{first} {second} {third} {small}"),
        )])
    });
}

#[test]
#[ignore = "a rank"]
fn rank() {
    job::rank(|peers| {
        let cases = rows(CASES).map(|[name, fault_name, _]| {
            let fault = fault(fault_name);
            let amp = f16_under(at_scale(1024.0).with_growth_interval(3));
            let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
            let (model, optim) = amp.prepare(model(3), sgd);
            let ended = match name {
                "dropped micro-batch" => train(peers, &amp, model, optim.with_accumulation(windows(2, true)), fault),
                "guard" => {
                    let outlier = r#"{"Outlier": {"window": 8, "skip_update_lossz": 2, "skip_update_gradz": 0}}"#;
                    let guard = Guard::load_binary(outlier.as_bytes()).unwrap();
                    train(peers, &amp, model, optim.with_hook(guard), fault)
                }
                "fused, overflow" => {
                    let (model, optim) = amp.prepare(model, FusedAdam::new(AdamConfig::new()));
                    train(peers, &amp, model, optim, fault)
                }
                _ => train(peers, &amp, model, optim, fault),
            };
            (name.to_string(), ended)
        });
        cases.collect()
    });
}

/// The same on all ranks, but for its ids.
pub fn model(outputs: usize) -> Linear {
    let device = Device::flex().autodiff();
    device.seed(7);
    let model = LinearConfig::new(4, outputs).init(&device);
    // Burn initializes lazily.
    numbers(&model);
    model
}

/// Gradients of a batch of this rank.
pub fn gradients(
    amp: &MixedPrecision,
    model: &Linear,
    rank: usize,
    step: usize,
) -> GradientsParams {
    let output = output(amp, model, batch(rank, step, 5));
    GradientsParams::from_grads(output.mean().backward(), model)
}

fn batch(rank: usize, step: usize, samples: usize) -> Tensor<2> {
    let values = wave(rank * 100 + step, samples * 4, 1.0);
    Tensor::from_data(
        TensorData::new(values, [samples, 4]),
        &Device::flex().autodiff(),
    )
}

fn output(amp: &MixedPrecision, model: &Linear, batch: Tensor<2>) -> Tensor<2> {
    amp.autocast(batch, |x| model.forward(x))
}

fn train<O: ModuleOptim>(
    peers: &MpiPeers,
    amp: &MixedPrecision,
    mut model: Linear,
    optim: ScaledOptimizer<O>,
    fault: Fault,
) -> String {
    let mut optim = optim.with_peers(peers.clone());
    let mut outcomes = Vec::new();
    let micro = if optim.window().is_some() { 2 } else { 1 };
    for step in 0..STEPS * micro {
        let rank = peers.rank();
        let here = step == AT * micro && rank + 1 == peers.size();
        let fault = if here { fault } else { Fault::Nothing };
        let mut loss = 1.0 + 0.1 * ((step * 7 + rank) % 5) as f64;
        let grads = match fault {
            Fault::NoGradients => GradientsParams::new(),
            _ => {
                let samples = if fault == Fault::EmptyBatch { 0 } else { 5 };
                let mut batch = batch(rank, step, samples);
                if fault == Fault::InfiniteOutput {
                    batch = batch * 1e6;
                }
                let factor = match fault {
                    Fault::Overflow => 1e4,
                    Fault::NanLoss => f64::NAN,
                    _ => 0.125,
                };
                if fault == Fault::Spike {
                    loss = 1e5;
                }
                let mut output = output(amp, &model, batch);
                if fault == Fault::InfiniteOutput {
                    output = output.square();
                }
                let sum = output.sum() * factor;
                GradientsParams::from_grads(sum.backward(), &model)
            }
        };
        optim.set_loss(loss);
        let grads = peers.average(&model, grads).unwrap();
        model = optim.try_step(0.01, model, grads).unwrap();
        outcomes.push(optim.scaler().last_outcome());
    }
    peers.compare(&model).unwrap();
    let (counters, scale) = (optim.scaler().counters(), optim.scaler().loss_scale());
    let bits: Vec<u32> = numbers(&model)
        .iter()
        .map(|value| value.to_bits())
        .collect();
    format!(
        "{} {} {} {} {} {scale}\n{counters:?}\n{:?}\n{outcomes:?}\n{bits:x?}",
        counters.stepped(),
        counters.skipped(),
        counters.guarded(),
        counters.dropped(),
        counters.bad_losses(),
        optim.scaler().schedule(),
    )
}
