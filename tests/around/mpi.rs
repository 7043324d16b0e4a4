//! Ranks that are processes, over MPI: they decide the same, and none waits for one that is gone.

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
