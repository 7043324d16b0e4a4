use burn::{
    lr_scheduler::LrSchedulerRecord,
    optim::OptimizerRecord,
    store::{ModuleRecord, RecordError},
};
use std::path::{Path, PathBuf};

use super::module::StateOnly;
use crate::{error::AmpError, scaler::GradScalerRecord};

/// Reads the checkpoint of an epoch as `SupervisedTraining::checkpoint(epoch)` will, and tells the scaler's state in it.
///
/// `directory` is that of the `SupervisedTraining`, whose default checkpointers write into `checkpoint` in it. Burn
/// panics on a checkpoint that it cannot read, and does not name the file: check before, to handle it. All three files
/// are read into memory, once; none if the scaler's state is absent, as in the checkpoint of a run without loss scaling.
///
/// ```no_run
/// use burn_amp::train::check_checkpoint;
///
/// # fn main() -> Result<(), burn_amp::AmpError> {
/// if let Some(scaler) = check_checkpoint("runs/digits", 3)? {
///     println!("resume at loss scale {}", scaler.schedule().scale());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`AmpError::RecordIo`] if a file is missing or unreadable, [`AmpError::DamagedRecord`] if it is not a record or the
/// scaler's state in it is damaged. Both name the file. Damage to the values of a parameter goes unnoticed: Burn's
/// records have no checksum.
pub fn check_checkpoint(
    directory: impl AsRef<Path>,
    epoch: usize,
) -> Result<Option<GradScalerRecord>, AmpError> {
    let folder = directory.as_ref().join("checkpoint");
    let file = |name: &str| folder.join(format!("{name}-{epoch}.bpk"));
    let model = load(file("model"), ModuleRecord::load)?;
    load(file("optim"), OptimizerRecord::load)?;
    load(file("scheduler"), LrSchedulerRecord::load)?;
    StateOnly::read(&model).map_err(|error| damaged(&file("model"), error))
}

fn load<R>(
    path: PathBuf,
    load: impl FnOnce(PathBuf) -> Result<R, RecordError>,
) -> Result<R, AmpError> {
    // Burn's message for a file that is not there would not name it.
    if let Err(error) = std::fs::File::open(&path) {
        return Err(AmpError::RecordIo {
            origin: path.display().to_string(),
            reason: error.to_string(),
        });
    }
    load(path.clone()).map_err(|error| damaged(&path, error))
}

fn damaged(path: &Path, error: RecordError) -> AmpError {
    AmpError::DamagedRecord {
        origin: path.display().to_string(),
        reason: match error {
            RecordError::Io(reason) | RecordError::Validation(reason) => reason,
        },
    }
}
