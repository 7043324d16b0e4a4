//! A job of MPI: this program again, once for each rank.

use crate::support::*;
use burn_amp::mpi::MpiPeers;
use burn_amp::optim::Peers;
use std::process::Command;

#[path = "../../../crates/burn-amp-mpi/tests/units/mpirun.rs"]
mod mpirun;

/// What each rank has written, by its number, where `mpirun` runs the test of this path in so many processes; none where there is no MPI.
pub fn run(ranks: usize, test: &str) -> Option<Vec<BTreeMap<String, String>>> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        skipped("there is no `mpirun`");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let rank = child(test, folder.path());
    let mut job = mpirun::mpirun(ranks, 60);
    job.arg(rank.get_program()).args(rank.get_args());
    job.envs(
        rank.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = job.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{ranks} ranks: {said}");
    let written = (0..ranks).map(|rank| json(folder.path().join(rank.to_string())));
    Some(written.collect())
}

/// In a rank: takes part, and writes what `name` ends with for each name of a case. Nothing in a process that is none.
pub fn rank(cases: impl FnOnce(&MpiPeers) -> BTreeMap<String, String>) {
    let Some(folder) = child_folder() else {
        return;
    };
    let peers = MpiPeers::initialize().unwrap();
    let said = cases(&peers);
    let file = folder.join(peers.rank().to_string());
    fs::write(file, serde_json::to_string(&said).unwrap()).unwrap();
}
