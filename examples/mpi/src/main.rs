//! Trains on handwritten digits in several processes: `mpirun -n 2 target/release/mpi`. Without the feature `mpi` it says what it needs.

#[cfg(feature = "mpi")]
mod checkpoint;
#[cfg(feature = "mpi")]
mod training;

#[cfg(feature = "mpi")]
fn main() -> std::process::ExitCode {
    use clap::Parser;

    match training::run(&training::Args::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(feature = "mpi"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "error: this program was built without MPI. Install it (Debian: apt-get install libopenmpi-dev openmpi-bin libclang-dev), then:\n\
         cargo build --release -p mpi-digits --features mpi && mpirun -n 2 target/release/mpi"
    );
    std::process::ExitCode::FAILURE
}
