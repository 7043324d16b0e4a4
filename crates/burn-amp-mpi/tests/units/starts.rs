//! How a process takes part, or is refused; and that one bucket is read while another is summed.

use mpi::topology::SimpleCommunicator;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::MpiPeers;
use super::average::read_ahead;
use super::peers::VERSION;
use super::world::World;
use burn::nn::LinearConfig;
use burn::tensor::Device;
use burn_amp_core::{AmpError, Peers};

#[path = "mpirun.rs"]
mod mpirun;

/// Runs a test of this file in so many processes; in one alone without `mpirun` if it is none.
fn run(ranks: Option<usize>, test: &str) -> Option<Output> {
    let program = std::env::current_exe().unwrap();
    let mut command = match ranks {
        None => Command::new(&program),
        Some(ranks) => {
            let mut job = mpirun::mpirun(ranks, 60);
            job.arg(&program);
            job
        }
    };
    let name = format!("starts::{test}");
    command.args([
        "--exact",
        &name,
        "--ignored",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    command.output().ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// `mpirun -n 1` is a training of one rank, and so is a program without `mpirun`. MPI starts once.
#[test]
fn one_process_is_one_rank() {
    for ranks in [None, Some(1)] {
        let output = run(ranks, "alone").expect("`mpirun` is there, with the library");
        assert!(output.status.success(), "{ranks:?}: {}", said(&output));
    }
}

#[test]
#[ignore = "a rank"]
fn alone() {
    let peers = MpiPeers::initialize().unwrap();
    assert_eq!([peers.rank(), peers.size()], [0, 1]);
    let again = MpiPeers::initialize().unwrap_err().to_string();
    assert!(again.contains("`MPI` is running, or has ended"), "{again}");
    let model = LinearConfig::new(4, 2).init(&Device::flex());
    peers.compare(&model).unwrap();
    drop(peers);
    let world = SimpleCommunicator::world();
    for ended in [MpiPeers::initialize(), MpiPeers::new(&world)] {
        assert!(
            matches!(ended, Err(AmpError::InvalidValue { .. })),
            "{ended:?}"
        );
    }
}

/// MPI itself would end the process.
#[test]
fn a_communicator_of_a_program_without_mpi_is_refused() {
    let error = MpiPeers::new(&SimpleCommunicator::world()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("`MPI` is not running") && error.contains("MpiPeers::initialize"),
        "{error}"
    );
}

#[test]
fn ranks_of_two_versions_are_refused() {
    let output = run(Some(2), "of_two_versions").unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
#[ignore = "a rank"]
fn of_two_versions() {
    let started = mpi::initialize_with_threading(mpi::Threading::Serialized);
    let (universe, _) = started.unwrap();
    let world = World::of(&universe.world()).unwrap();
    let version = if world.rank() == 1 {
        "burn-amp 0.0.9"
    } else {
        VERSION
    };
    let error = MpiPeers::with(world, Some(universe), version)
        .unwrap_err()
        .to_string();
    let why = format!(
        "rank 1 of the training stops it: it has burn-amp 0.0.9, where rank 0 has {VERSION}"
    );
    assert!(error.contains(&why), "{error}");
}

/// A rank whose peers are leaked tells nobody that it ends: `mpirun` ends the others when its process is gone.
#[test]
fn a_rank_that_leaks_its_peers_ends_the_job() {
    let start = Instant::now();
    let output = run(Some(2), "leaked").unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{}",
        said(&output)
    );
}

#[test]
#[ignore = "a rank"]
fn leaked() {
    let peers = MpiPeers::initialize().unwrap();
    match peers.rank() {
        0 => drop(peers.compare(&LinearConfig::new(4, 2).init(&Device::flex()))),
        _ => std::mem::forget(peers),
    }
}

#[test]
fn a_bucket_is_read_while_the_one_before_is_summed() {
    for buckets in [0, 1, 2, 5] {
        let (begun, mut summed) = (AtomicUsize::new(0), Vec::new());
        let buckets: Vec<usize> = (0..buckets).collect();
        let read = |bucket: &usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            *bucket
        };
        read_ahead(&buckets, read, |bucket, values| {
            // The next one, and none after it.
            let ahead = (bucket + 2).min(buckets.len());
            let start = Instant::now();
            while begun.load(Ordering::SeqCst) < ahead {
                assert!(start.elapsed() < Duration::from_secs(20), "nothing is read");
                std::thread::yield_now();
            }
            assert_eq!(begun.load(Ordering::SeqCst), ahead);
            summed.push(values.unwrap());
        });
        assert_eq!(summed, buckets);
    }
    let mut missing = 0;
    let broken = |bucket: &usize| {
        if *bucket == 1 {
            panic!("a device fails")
        } else {
            *bucket
        }
    };
    let read = |bucket: &usize| std::panic::catch_unwind(|| broken(bucket)).ok();
    read_ahead(&[0, 1, 2], read, |_, values| {
        missing += usize::from(values.flatten().is_none())
    });
    assert_eq!(missing, 1);
}
