//! Ranks that are processes, over MPI: they decide the same, and none waits for one that is gone. What they decide, and in what they may not differ, threads
//! show in `tests/oracle` and in `peers.rs`.

#[cfg(feature = "mpi")]
mod apart;
#[cfg(feature = "mpi")]
mod job;
#[cfg(feature = "mpi")]
mod together;

#[cfg(not(feature = "mpi"))]
#[test]
fn ranks() {
    crate::support::skipped("it needs the feature `mpi`, with an MPI library");
}
