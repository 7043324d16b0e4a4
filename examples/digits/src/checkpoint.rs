//! A stopped program's state in one file: progress, network, optimizer and scaler.

use burn::{
    module::Module,
    store::ModuleRecord,
    tensor::{Bytes, DType, Device},
};
use burn_pack::{Reader, Tensor, Writer};
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::{
    Result,
    report::Summary,
    training::{History, Run, Trainer},
};

/// How far the program has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// The seed of all runs.
    pub seed: u64,
    /// The steps of every run.
    pub epochs: usize,
    /// The runs that are done.
    pub done: Vec<(Summary, History)>,
    /// The run that is not, and what it has recorded.
    pub current: Option<(Run, History)>,
}

/// Writes progress and the present run's network, optimizer and scaler: beside the file first, then renamed.
///
/// # Errors
///
/// If the file cannot be written; names it.
pub fn save(path: &Path, mut progress: Progress, trainer: Option<&mut Trainer>) -> Result<()> {
    let mut tensors = Vec::new();
    if let Some(trainer) = trainer {
        progress.current = Some((trainer.run(), trainer.history.clone()));
        tensors.push(part(
            "model",
            trainer.model.clone().into_record().into_bytes()?,
        ));
        tensors.push(part("optim", trainer.optim.into_bytes()?));
    }
    Writer::new(tensors)
        .with_metadata("progress", &serde_json::to_string(&progress)?)
        .auto_extension(false)
        .write_to_file(path)
        .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// Reads what [`save`] has written.
///
/// # Errors
///
/// If the file is missing, damaged or something else; names it.
pub fn load(path: &Path, device: &Device) -> Result<(Progress, Option<Trainer>)> {
    read(path, device)
        .map_err(|error| format!("cannot resume from {}: {error}", path.display()).into())
}

fn read(path: &Path, device: &Device) -> Result<(Progress, Option<Trainer>)> {
    let reader = Reader::from_file_exact(path)?;
    let progress = reader.metadata().get("progress");
    let progress = progress.ok_or("it is not a checkpoint of this program")?;
    let mut progress: Progress = serde_json::from_str(progress)?;
    let Some((run, history)) = progress.current.take() else {
        return Ok((progress, None));
    };
    let bytes = |name| Ok::<_, burn_pack::Error>(Bytes::from_bytes_vec(reader.tensor_data(name)?));
    let mut trainer = Trainer::new(run, progress.seed, progress.epochs, device)?;
    let record = ModuleRecord::from_bytes(bytes("model")?)?;
    trainer.model = trainer.model.try_load_record(record)?;
    trainer.optim.from_bytes(bytes("optim")?)?;
    trainer.history = history;
    Ok((progress, Some(trainer)))
}

fn part(name: &str, bytes: Bytes) -> Tensor {
    let length = bytes.len();
    Tensor::new(name.to_string(), DType::U8, vec![length], None, bytes)
}
