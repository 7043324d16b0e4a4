//! The ranks of MPI, as a program sees them.

use burn::module::Module;
use burn::optim::GradientsParams;
use mpi::environment::{Threading, Universe};
use mpi::traits::Communicator;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn_amp_core::internal::{described, locked};
use burn_amp_core::{AmpError, Peers, Vote};

use crate::average::average;
use crate::ranks::Ranks;
use crate::world::World;

pub(crate) const VERSION: &str = concat!("burn-amp ", env!("CARGO_PKG_VERSION"));

/// The ranks of an MPI job, each a process that trains a copy of one model.
///
/// It averages gradients, and has the optimizers decide together: [`ScaledOptimizer::with_peers`](burn_amp_core::ScaledOptimizer::with_peers). Clones
/// are the same rank. Call the same methods in the same order on all ranks, as with MPI itself. Here, each call begins with an exchange of what every
/// rank is about to do, 16 bytes. So a rank that has failed or ended, or that makes another call, gives the others an error, which names it, and none
/// waits for it.
///
/// A rank ends when its last clone is dropped, also by a panic. That waits until the others end, too, or make their next call. If a rank ends otherwise,
/// by a signal, by `std::process::exit` or because a clone is leaked, `mpirun` ends the job when its process is gone.
#[derive(Clone)]
pub struct MpiPeers {
    rank: usize,
    size: usize,
    ranks: Arc<Mutex<Ranks>>,
}

impl MpiPeers {
    /// Starts MPI, and takes part with all processes of the job. MPI ends when the last clone is dropped: do so on the thread that has called this.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if MPI was started before, or cannot be used on several threads. [`AmpError::Ranks`] if a rank has another version of
    /// burn-amp.
    pub fn initialize() -> Result<Self, AmpError> {
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, _) = started.ok_or_else(|| {
            let allowed = "started by this call: `MpiPeers::new` takes part where it runs";
            AmpError::refused("MPI", "running, or has ended", allowed)
        })?;
        Self::with(World::of(&universe.world())?, Some(universe), VERSION)
    }

    /// Takes part with all ranks of a communicator, in a program that has started MPI itself. Call it on all of them. Drop all clones before MPI ends.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if MPI does not run, or was not started with `Threading::Serialized` or `Threading::Multiple`. [`AmpError::Ranks`] if a
    /// rank has another version of burn-amp.
    pub fn new(world: &impl Communicator) -> Result<Self, AmpError> {
        Self::with(World::of(world)?, None, VERSION)
    }

    /// Takes part with ranks of one version: others may exchange other things.
    pub(crate) fn with(
        world: World,
        universe: Option<Universe>,
        version: &str,
    ) -> Result<Self, AmpError> {
        let (rank, size) = (world.rank(), world.size());
        let mut ranks = Ranks::new(world, universe);
        ranks.compare(version)?;
        Ok(Self {
            rank,
            size,
            ranks: Arc::new(Mutex::new(ranks)),
        })
    }

    /// Averages gradients over the ranks: the sum of all, divided by their number. The sums are in f32, and have the same bits on all ranks: rank 0 gets
    /// them by `MPI_Reduce` and sends them out by `MPI_Bcast`, since MPI does not promise equal bits of `MPI_Allreduce`.
    ///
    /// A parameter that has a gradient on some ranks counts as zero on the others, and gets the average on all; one without any gets none. Infinities and
    /// NaN stay. Where each loss is a mean over the rank's part of a batch, and the parts are of one size, that is the gradient of the mean over the whole
    /// batch; else multiply the loss by the part's size, times the number of ranks, divided by the size of the batch.
    ///
    /// Gradients stay on their devices. Averages of f16 and bf16 gradients are f32. They go in buckets of 25 MB; while one is summed, a thread reads the
    /// next from its device. Waits for the device, and for all ranks.
    ///
    /// # Errors
    ///
    /// [`AmpError::Ranks`] if the parameters of the ranks differ in names or shapes, or a rank fails here, has ended, or makes another call; it names the
    /// rank. [`AmpError::GradientShape`] on the rank where a gradient has not its parameter's shape.
    pub fn average<M: Module>(
        &self,
        module: &M,
        grads: GradientsParams,
    ) -> Result<GradientsParams, AmpError> {
        average(&mut locked(&self.ranks), module, grads)
    }

    /// Checks that the parameters have the same names, shapes and bits on all ranks. Waits for the device, and for all ranks.
    ///
    /// # Errors
    ///
    /// [`AmpError::Ranks`] if they differ; it names the first rank that differs from rank 0, and the parameter. Also as for [`average`](Self::average).
    pub fn compare<M: Module>(&self, module: &M) -> Result<(), AmpError> {
        let about = described(module).join("\n");
        locked(&self.ranks).compare(&about)
    }
}

impl Peers for MpiPeers {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
        locked(&self.ranks).vote(&vote)
    }
}

impl fmt::Debug for MpiPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} over MPI", self.rank, self.size)
    }
}
