use burn::{
    lr_scheduler::LrSchedulerRecord,
    optim::OptimizerRecord,
    store::ModuleRecord,
    train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError, FileCheckpointer},
};
use std::path::{Path, PathBuf};

use super::recorded::StateOnly;

/// Burn's default checkpointers of a run in `directory`, for `SupervisedTraining::with_custom_checkpointers`, with errors that
/// name the file.
///
/// They write and read the same files, of the model, the optimizer and the learning-rate scheduler, in this order. Burn
/// panics all the same if `SupervisedTraining::checkpoint` cannot read one, but its message then says which, damaged
/// state of the loss scaler included; [`check_checkpoint`](super::check_checkpoint) before makes it an error.
///
/// ```no_run
/// # use burn::train::{LearnerModel, SupervisedTraining};
/// # fn resume<M: LearnerModel>(training: SupervisedTraining<M>) -> SupervisedTraining<M> {
/// use burn_amp::train::checkpointers;
///
/// let (model, optim, scheduler) = checkpointers("runs/digits");
/// training.with_custom_checkpointers(model, optim, scheduler).checkpoint(3)
/// # }
/// ```
pub fn checkpointers(
    directory: impl AsRef<Path>,
) -> (
    NamingCheckpointer<ModuleRecord>,
    NamingCheckpointer<OptimizerRecord>,
    NamingCheckpointer<LrSchedulerRecord>,
) {
    let folder = directory.as_ref().join("checkpoint");
    let state = |record: &ModuleRecord| StateOnly::read(record).err().map(|e| e.to_string());
    (
        NamingCheckpointer::new(&folder, "model", state),
        NamingCheckpointer::new(&folder, "optim", |_| None),
        NamingCheckpointer::new(&folder, "scheduler", |_| None),
    )
}

/// Burn's [`FileCheckpointer`], whose errors name the file; see [`checkpointers`].
pub struct NamingCheckpointer<R> {
    inner: FileCheckpointer,
    folder: PathBuf,
    name: &'static str,
    /// What is wrong with a record that could be read.
    flaw: fn(&R) -> Option<String>,
}

impl<R> NamingCheckpointer<R> {
    fn new(folder: &Path, name: &'static str, flaw: fn(&R) -> Option<String>) -> Self {
        Self {
            inner: FileCheckpointer::new(folder, name),
            folder: folder.to_path_buf(),
            name,
            flaw,
        }
    }

    fn error(&self, epoch: usize, reason: impl std::fmt::Display) -> CheckpointerError {
        let file = self.folder.join(format!("{}-{epoch}.bpk", self.name));
        CheckpointerError::Unknown(format!("{}: {reason}", file.display()))
    }
}

impl<R: Checkpoint> Checkpointer<R> for NamingCheckpointer<R> {
    fn save(&self, epoch: usize, record: R) -> Result<(), CheckpointerError> {
        (self.inner.save(epoch, record)).map_err(|error| self.error(epoch, error))
    }

    fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
        Checkpointer::<R>::delete(&self.inner, epoch).map_err(|error| self.error(epoch, error))
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        let record = self.inner.restore(epoch);
        let record = record.map_err(|error| self.error(epoch, error))?;
        match (self.flaw)(&record) {
            Some(flaw) => Err(self.error(epoch, flaw)),
            None => Ok(record),
        }
    }
}

impl<R> std::fmt::Debug for NamingCheckpointer<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamingCheckpointer")
            .field("folder", &self.folder)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
