//! The program of each rank. A program of one process has neither `peers` nor `part`.

use burn::optim::{AdamConfig, GradientsParams};
use burn::{module::Module, tensor::Device};
use burn_amp::{MixedPrecision, mpi::MpiPeers, optim::FusedAdam, optim::Peers};
use clap::Parser;
use digits::{Result, data::Digits, model::Network, training::brier_score};
use indicatif::ProgressBar;
use std::{f64::consts::PI, path::PathBuf, time::Instant};

use crate::checkpoint;

/// Trains a network on handwritten digits in f16, in as many processes as `mpirun` starts.
#[derive(Parser)]
#[command(version)]
pub struct Args {
    /// Steps, each on all training samples
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: u64,
    /// Keep the state in this file, written every 20 steps
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on from a checkpoint, with any number of processes
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let peers = MpiPeers::initialize()?;
    let (rank, ranks) = (peers.rank(), peers.size());
    let device = Device::flex();
    let digits = Digits::load(&device)?;

    // The same network on all ranks.
    device.seed(0);
    let amp = MixedPrecision::f16();
    let adam = FusedAdam::new(AdamConfig::new().with_epsilon(1e-8));
    let (mut model, optim) = amp.prepare(Network::new(&device.autodiff()), adam);
    let mut optim = optim.with_peers(peers.clone());
    if let Some(path) = &args.resume {
        model = checkpoint::load(path, model, &mut optim)?;
    }

    // This rank's part of the batch, and how much larger it is than that of others.
    let [samples] = digits.train.labels.dims();
    let part = rank * samples / ranks..(rank + 1) * samples / ranks;
    let weight = (part.len() * ranks) as f64 / samples as f64;
    let images = digits.train.images.clone().slice([part.clone()]);
    let labels = digits.train.labels.clone().slice([part]);

    let bar = match rank {
        0 => ProgressBar::new(args.epochs),
        _ => ProgressBar::hidden(),
    };
    let (start, first) = (Instant::now(), optim.scaler().counters().steps());
    for step in first..args.epochs {
        let lr = 0.005 * (1.0 + (PI * step as f64 / args.epochs as f64).cos());
        let logits = amp.autocast(images.clone(), |x| model.forward(x));
        let loss = brier_score(logits, labels.clone()) * weight;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let grads = peers.average(&model, grads)?;
        model = optim.try_step(lr, model, grads)?;

        bar.set_position(step + 1);
        let is_due = rank == 0 && step % 20 == 19;
        if let Some(path) = args.checkpoint.as_ref().filter(|_| is_due) {
            checkpoint::save(path, &model, &mut optim)?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();

    peers.compare(&model)?;
    if rank == 0 {
        let accuracy = 100.0 * test_accuracy(&amp, &model, &digits);
        let each = 1e3 * seconds / (args.epochs - first).max(1) as f64;
        println!("test accuracy {accuracy:.2} %, {each:.2} ms for a step");
        println!("the parameters of all ranks ({ranks}) are the same, bit for bit");
    }
    Ok(())
}

/// The share of the test samples that the network gets right.
fn test_accuracy(amp: &MixedPrecision, model: &Network, digits: &Digits) -> f64 {
    let images = digits.test.images.clone();
    let logits = amp.autocast(images, |x| model.valid().forward(x));
    let labels = digits.test.labels.clone();
    let [samples] = labels.dims();
    let right = logits.argmax(1).reshape([samples]).equal(labels);
    f64::from(right.int().sum().into_scalar::<i32>()) / samples as f64
}
