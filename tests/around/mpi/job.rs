//! A job of MPI: this program again, once for each rank.

use super::{apart, together};
use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;
use std::{env, process::Command};

#[path = "../../../crates/burn-amp-mpi/tests/units/mpirun.rs"]
mod mpirun;

/// What a rank says, by what it says it of.
pub type Said = BTreeMap<String, String>;

const CASE: &str = "BURN_AMP_TEST_CASE";

/// What each of two ranks says of a case, and each of three; nothing where there is no MPI.
pub fn run(case: &str) -> Vec<Vec<Said>> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        skipped("there is no `mpirun`");
        return Vec::new();
    }
    [2, 3].map(|ranks| of_ranks(ranks, case)).to_vec()
}

fn of_ranks(ranks: usize, case: &str) -> Vec<Said> {
    let folder = tempfile::tempdir().unwrap();
    let rank = child(&format!("{}::rank", module_path!()), folder.path());
    let mut job = mpirun::mpirun(ranks, 60);
    job.arg(rank.get_program()).args(rank.get_args());
    let set = rank.get_envs();
    job.envs(set.filter_map(|(name, value)| Some((name, value?))));
    let output = job.env(CASE, case).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}, {ranks} ranks: {said}");
    let written = (0..ranks).map(|rank| json(folder.path().join(rank.to_string())));
    written.collect()
}

#[test]
#[ignore = "a rank"]
fn rank() {
    let Some(folder) = child_folder() else {
        return;
    };
    let peers = MpiPeers::initialize().unwrap();
    let said = match &*env::var(CASE).unwrap() {
        "decides" => together::decides(&peers),
        "averages" => together::averages(&peers),
        "differs" => apart::differs(&peers),
        ends => apart::ends(&peers, ends),
    };
    let file = folder.join(peers.rank().to_string());
    fs::write(file, serde_json::to_string(&said).unwrap()).unwrap();
}
