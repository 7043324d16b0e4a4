use burn::{
    lr_scheduler::LrSchedulerRecord,
    optim::OptimizerRecord,
    store::{ModuleRecord, RecordError},
};
use std::path::{Path, PathBuf};

use super::{recorded::StateOnly, state::StateError};
use crate::{error::AmpError, scaler::GradScalerRecord};

/// Reads the checkpoint of an epoch as `SupervisedTraining::checkpoint(epoch)` will, and tells the scaler's state in it.
///
/// `directory` is that of the `SupervisedTraining`, whose default checkpointers write into `checkpoint` in it. Burn
/// panics on a checkpoint that it cannot read, and does not name a damaged file: check before, to handle it. Reads the heads
/// of all three files and the tensor with the scaler's state, and waits for the disk; none if that tensor is absent, as in
/// the checkpoint of a run without loss scaling.
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
/// scaler's state in it is damaged, [`AmpError::NewerRecord`] if a later release has written that state. All name the
/// file. Damage to the values of a parameter or an average goes unnoticed: Burn's records have no checksum.
pub fn check_checkpoint(
    directory: impl AsRef<Path>,
    epoch: usize,
) -> Result<Option<GradScalerRecord>, AmpError> {
    let folder = directory.as_ref().join("checkpoint");
    let file = |name: &str| folder.join(format!("{name}-{epoch}.bpk"));
    let model = load(file("model"), ModuleRecord::load)?;
    load(file("optim"), OptimizerRecord::load)?;
    load(file("scheduler"), LrSchedulerRecord::load)?;
    let state = StateOnly::read(&model).map_err(|error| {
        let origin = file("model").display().to_string();
        match error {
            StateError::Damaged(_) => AmpError::DamagedRecord {
                origin,
                reason: error.to_string(),
            },
            StateError::Newer { found, supported } => AmpError::NewerRecord {
                origin,
                found,
                supported,
            },
        }
    })?;
    Ok(state.map(|state| state.scaler))
}

fn load<R>(
    path: PathBuf,
    load: impl FnOnce(PathBuf) -> Result<R, RecordError>,
) -> Result<R, AmpError> {
    // To tell a file that cannot be read from one that is damaged.
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
