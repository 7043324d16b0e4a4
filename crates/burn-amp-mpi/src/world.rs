//! The collective operations of MPI that are needed, in types of Rust.

use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::{Threading, is_finalized, is_initialized, threading_support};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use burn_amp_core::AmpError;

/// Values of one call of MPI, which counts them in 32 bits.
const CALL: usize = 1 << 28;

/// A communicator of our own, so that no message of the program is taken for one of ours.
pub(crate) struct World(Option<SimpleCommunicator>);

// SAFETY: a communicator is a handle, which MPI allows any thread to use from the level `Serialized` on, one at a time. `World::of` refuses lower
// levels, and `MpiPeers` has it behind a mutex.
unsafe impl Send for World {}

impl World {
    /// Duplicates a communicator, on all of its ranks.
    pub(crate) fn of(world: &impl Communicator) -> Result<Self, AmpError> {
        if !is_initialized() || is_finalized() {
            let allowed = "running: `MpiPeers::initialize` starts it";
            return Err(AmpError::refused("MPI", "not running", allowed));
        }
        let level = threading_support();
        match level >= Threading::Serialized {
            true => Ok(Self(Some(world.duplicate()))),
            false => Err(AmpError::refused(
                "threading",
                format!("{level:?}"),
                "`Serialized` or `Multiple`: `mpi::initialize_with_threading(Threading::Serialized)`",
            )),
        }
    }

    fn communicator(&self) -> &SimpleCommunicator {
        self.0.as_ref().expect("it is there until it is dropped")
    }

    pub(crate) fn rank(&self) -> usize {
        self.communicator().rank() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.communicator().size() as usize
    }

    /// The same number of words of every rank.
    pub(crate) fn gather<const N: usize>(&self, words: [u64; N]) -> Vec<[u64; N]> {
        let mut all = vec![0; N * self.size()];
        self.communicator()
            .all_gather_into(&words[..], &mut all[..]);
        let (chunks, _) = all.as_chunks::<N>();
        chunks.to_vec()
    }

    /// The bytes of every rank, which has told how many there are.
    pub(crate) fn gather_bytes(&self, bytes: &[u8], lengths: &[usize]) -> Vec<Vec<u8>> {
        let counts: Vec<i32> = lengths.iter().map(|&length| length as i32).collect();
        let starts = counts.iter().scan(0, |end, count| {
            let start = *end;
            *end += count;
            Some(start)
        });
        let starts: Vec<i32> = starts.collect();
        let mut all = vec![0; lengths.iter().sum()];
        let mut parts = PartitionMut::new(&mut all[..], counts, &starts[..]);
        self.communicator()
            .all_gather_varcount_into(bytes, &mut parts);
        let ends = starts.iter().zip(lengths);
        let parts = ends.map(|(&start, length)| all[start as usize..][..*length].to_vec());
        parts.collect()
    }

    /// The texts of every rank.
    pub(crate) fn gather_texts(&self, text: &str) -> Vec<String> {
        let lengths = self.gather([text.len() as u64]);
        let lengths: Vec<usize> = lengths.iter().map(|[length]| *length as usize).collect();
        let texts = self.gather_bytes(text.as_bytes(), &lengths).into_iter();
        texts
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .collect()
    }

    /// Returns the flags that are set on some rank.
    pub(crate) fn any(&self, flags: &[u8]) -> Vec<u8> {
        let mut any = vec![0; flags.len()];
        let operation = SystemOperation::bitwise_or();
        self.communicator()
            .all_reduce_into(flags, &mut any[..], operation);
        any
    }

    /// The lowest value of all ranks.
    pub(crate) fn lowest(&self, value: u64) -> u64 {
        let mut lowest = 0;
        self.communicator()
            .all_reduce_into(&value, &mut lowest, SystemOperation::min());
        lowest
    }

    /// The mean of all ranks, with the same bits on each: rank 0 has the sum, and sends it to the others. `sum` is for it.
    pub(crate) fn mean(&self, values: &mut [f32], sum: &mut Vec<f32>) {
        let communicator = self.communicator();
        let root = communicator.process_at_rank(0);
        let add = SystemOperation::sum();
        for values in values.chunks_mut(CALL) {
            match self.rank() {
                0 => {
                    sum.resize(values.len(), 0.0);
                    root.reduce_into_root(&*values, &mut sum[..], add);
                    let ranks = self.size() as f32;
                    for (value, sum) in values.iter_mut().zip(&*sum) {
                        *value = sum / ranks;
                    }
                }
                _ => root.reduce_into(&*values, add),
            }
            root.broadcast_into(values);
        }
    }
}

/// Frees the communicator, unless the program has ended MPI before.
impl Drop for World {
    fn drop(&mut self) {
        if is_finalized() {
            std::mem::forget(self.0.take());
        }
    }
}
