//! What happens on one rank only, and what all decide: the same, bit for bit.

use super::job::{Said, run};
use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;

/// What the last rank meets in the tenth of twelve steps; steps, skips, steps that a guard rejected, dropped micro-batches, bad losses, and the last
/// loss scale.
const FAULTS: &str = "
nothing > 12 0 0 0 0 16384
an overflow > 11 1 0 0 0 4096
an infinite output > 11 1 0 0 1 8192
a NaN loss > 11 1 0 0 1 8192
no gradients > 12 0 0 0 0 16384
an empty batch > 12 0 0 0 0 16384
an overflow of a micro-batch > 11 0 0 1 0 65536
a spike > 11 0 1 0 0 8192
";

#[test]
fn all_ranks_decide_the_same() {
    for written in run("decides") {
        for [fault, expected] in rows(FAULTS) {
            let first = &written[0][fault];
            assert_eq!(first.lines().next(), Some(expected), "{fault}: {first}");
            for other in &written {
                assert_eq!(&other[fault], first, "{fault}, {} ranks", written.len());
            }
        }
    }
}

pub fn decides(peers: &MpiPeers) -> Said {
    let faults = rows(FAULTS).map(|[fault, _]| (fault.to_string(), train(peers, fault)));
    faults.collect()
}

fn train(peers: &MpiPeers, fault: &str) -> String {
    let amp = f16_under(at_scale(1024.0).with_growth_interval(3));
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let (mut model, mut optim) = amp.prepare(model(3), momentum.init());
    optim = match fault {
        "an overflow of a micro-batch" => optim.with_accumulation(windows(2, true)),
        "a spike" => {
            let guard = Outlier::new().with_window(8).with_skip_update_lossz(2.0);
            optim.with_hook(Guard::Outlier(guard.with_skip_update_gradz(0.0)))
        }
        _ => optim,
    };
    let micro_batches = if optim.window().is_some() { 2 } else { 1 };
    let mut optim = optim.with_peers(peers.clone());
    let (rank, mut outcomes) = (peers.rank(), Vec::new());
    for step in 0..12 * micro_batches {
        let is_here = step == 9 * micro_batches && is_last(peers);
        let fault = if is_here { fault } else { "nothing" };
        let (mut grads, mut samples, mut height, mut factor) = (None, 5, 1.0, 0.015625);
        let mut loss = 1.0 + 0.1 * ((step * 7 + rank) % 5) as f64;
        match fault {
            "an overflow" | "an overflow of a micro-batch" => factor = 1e4,
            "an infinite output" => height = f64::INFINITY,
            "a NaN loss" => factor = f64::NAN,
            "no gradients" => grads = Some(GradientsParams::new()),
            "an empty batch" => samples = 0,
            "a spike" => loss = 1e5,
            _ => {}
        }
        let output = output(&amp, &model, batch(rank, step, samples) * height);
        let sum = output.square().sum() * factor;
        let own = || GradientsParams::from_grads(sum.backward(), &model);
        optim.set_loss(loss);
        let grads = peers.average(&model, grads.unwrap_or_else(own)).unwrap();
        model = optim.try_step(0.01, model, grads).unwrap();
        outcomes.push(optim.scaler().last_outcome());
    }
    peers.compare(&model).unwrap();
    let (found, scale) = (optim.scaler().counters(), optim.scaler().loss_scale());
    let [steps, skips, bad] = [found.stepped(), found.skipped(), found.bad_losses()];
    let [rejected, dropped] = [found.guarded(), found.dropped()];
    let bits: Vec<u32> = numbers(&model).into_iter().map(f32::to_bits).collect();
    let all = (found, optim.scaler().schedule(), outcomes, bits);
    format!("{steps} {skips} {rejected} {dropped} {bad} {scale}\n{all:?}")
}

/// Of more than a bucket, of gradients on one rank or on none, and in f16.
#[test]
fn averages_have_the_same_bits_on_all_ranks() {
    for written in run("averages") {
        let ranks = written.len();
        let mean = (1..=ranks).sum::<usize>() as f32 / ranks as f32;
        let expected = format!("{mean:?} {:?} none {mean:?}", 3.0 / ranks as f32);
        for said in written {
            assert_eq!(said["averages"], expected, "{ranks} ranks");
        }
    }
}

/// With three parameters that do not fit into one bucket, and a small one.
pub fn averages(peers: &MpiPeers) -> Said {
    let device = Device::flex();
    let large = |values| Param::from_tensor(Tensor::<1>::zeros([values], &device));
    let large = [5_000_000, 5_000_000, 7_000_000].map(large);
    let small = Param::from_tensor(Tensor::<2>::zeros([2, 3], &device));
    let model = (large, small);
    let own = (peers.rank() + 1) as f32;
    let mut grads = GradientsParams::new();
    grads.register::<1>(model.0[0].id, Tensor::full([5_000_000], own, &device));
    if is_last(peers) {
        grads.register::<1>(model.0[1].id, Tensor::full([5_000_000], 3.0, &device));
    }
    let half = Tensor::<2>::full([2, 3], own, &device).cast(FloatDType::F16);
    grads.register::<2>(model.1.id, half);

    let averages = peers.average(&model, grads).unwrap();
    let one_value = |values: Vec<f32>| {
        assert!(values.iter().all(|value| *value == values[0]));
        format!("{:?}", values[0])
    };
    let average = |param: &Param<Tensor<1>>| {
        let average = averages.get::<1>(param.id).map(values);
        average.map_or("none".to_string(), one_value)
    };
    let [first, second, third] = model.0.each_ref().map(average);
    let small = one_value(values(averages.get::<2>(model.1.id).unwrap()));
    let said = format!("{first} {second} {third} {small}");
    [("averages".to_string(), said)].into()
}

pub fn is_last(peers: &MpiPeers) -> bool {
    peers.rank() + 1 == peers.size()
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
    random(rank * 100 + step, [samples, 4], &flex())
}

fn output(amp: &MixedPrecision, model: &Linear, batch: Tensor<2>) -> Tensor<2> {
    amp.autocast(batch, |x| model.forward(x))
}
