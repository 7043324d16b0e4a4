//! The time of a step of two ranks over MPI, each with one thread: by itself, with the vote, and with the sum of the gradients too.
//!
//! ```sh
//! cargo bench -p mpi-digits --features mpi --bench ranks    # starts `mpirun -n 2`
//! ```
//!
//! The ways take turns in one run, and each step begins on both ranks together. Times are medians, and ratios are medians of the rounds' ratios.

use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use burn_amp::{AmpError, MixedPrecision, ScaledOptimizer, mpi::MpiPeers, optim::Peers};
use burn_amp::{optim::FusedAdam, optim::ModuleOptim};
use digits::{data::Digits, model::Network, training::brier_score};
use gpt::model::{Gpt, Size};
use std::{env, process::ExitCode, time::Instant};

#[path = "../../../crates/burn-amp-mpi/tests/units/mpirun.rs"]
mod mpirun;

/// What a rank does beside its step.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Alone,
    Votes,
    Averages,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Alone, "by itself"),
    (Way::Votes, "with the vote"),
    (Way::Averages, "with the vote, and gradients summed"),
];

/// A small module, to have both ranks begin together.
#[derive(Module, Debug)]
struct Start {
    value: Param<Tensor<1>>,
}

struct Run<M, O> {
    way: Way,
    amp: MixedPrecision,
    /// Nothing else holds it in a step, so that it is updated in place.
    model: Option<M>,
    optim: ScaledOptimizer<O>,
    times: Vec<f64>,
}

impl<M: Module, O: ModuleOptim> Run<M, O> {
    /// The loss of all ranks is the same: so they have the same parameters where nothing is summed.
    fn step(
        &mut self,
        peers: &MpiPeers,
        loss: &impl Fn(&M, &MixedPrecision) -> Tensor<1>,
    ) -> Result<(), AmpError> {
        let begun = Instant::now();
        let model = self.model.take().expect("the last step has given it back");
        let grads = loss(&model, &self.amp).backward();
        let mut grads = GradientsParams::from_grads(grads, &model);
        if self.way == Way::Averages {
            grads = peers.average(&model, grads)?;
        }
        self.model = Some(self.optim.try_step(1e-4, model, grads)?);
        self.times.push(1e3 * begun.elapsed().as_secs_f64());
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rows of the table, of one network.
fn compare<M: Module, O: ModuleOptim>(
    (name, model, rounds): (&str, M, usize),
    optim: impl Fn() -> O,
    peers: &MpiPeers,
    loss: impl Fn(&M, &MixedPrecision) -> Tensor<1>,
) -> Result<(), AmpError> {
    let start = Start {
        value: Param::from_tensor(Tensor::zeros([1], &Device::flex())),
    };
    let mut runs = WAYS.map(|(way, _)| {
        let amp = MixedPrecision::f16();
        let (model, mut optim) = amp.prepare(model.clone(), optim());
        if way != Way::Alone {
            optim = optim.with_peers(peers.clone());
        }
        Run {
            way,
            amp,
            model: Some(model),
            optim,
            times: Vec::new(),
        }
    });
    for round in 0..rounds + 3 {
        for run in &mut runs {
            peers.compare(&start)?;
            run.step(peers, &loss)?;
            // The first steps allocate, and ranks compare their settings.
            if round < 3 {
                run.times.clear();
            }
        }
    }
    if peers.rank() > 0 {
        return Ok(());
    }
    for (run, (_, way)) in runs.iter().zip(WAYS) {
        let ratios = run.times.iter().zip(&runs[0].times);
        let ratio = median(ratios.map(|(own, alone)| own / alone).collect());
        let (parameters, time) = (model.num_params(), median(run.times.clone()));
        println!("| {name}, {parameters} | {way} | {time:.2} | {ratio:.2} |");
    }
    Ok(())
}

fn ranks() -> Result<(), Box<dyn std::error::Error>> {
    let peers = MpiPeers::initialize()?;
    let device = Device::flex();
    if peers.rank() == 0 {
        println!("| network, parameters | a step | ms | ratio |\n|---|---|--:|--:|");
    }
    let fused = || FusedAdam::new(AdamConfig::new());
    let digits = Digits::load(&device)?;
    let (images, labels) = (digits.train.images, digits.train.labels);
    device.seed(0);
    let network = Network::new(&device.clone().autodiff());
    compare(("digits", network, 100), fused, &peers, |model, amp| {
        let logits = amp.autocast(images.clone(), |x| model.forward(x));
        brier_score(logits, labels.clone())
    })?;
    let size = Size {
        context: 64,
        width: 256,
        heads: 4,
        layers: 8,
        tied: false,
    };
    let autodiff = device.autodiff();
    let network = Gpt::new(512, size, &autodiff);
    let tokens = Tensor::<1, Int>::arange(0..256, &autodiff).reshape([4, 64]);
    // Burn draws parameters when they are read first.
    network.clone().into_record();
    compare(("GPT", network, 12), fused, &peers, |model, amp| {
        let logits = amp.autocast(tokens.clone(), |x| model.forward(x));
        logits.square().mean()
    })?;
    Ok(())
}

fn main() -> ExitCode {
    if env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        return match ranks() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let program = env::current_exe().expect("a program has a path");
    let mut job = mpirun::mpirun(2, 600);
    job.arg(program).env("RAYON_NUM_THREADS", "1");
    match job.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: mpirun: {error}");
            ExitCode::FAILURE
        }
    }
}
