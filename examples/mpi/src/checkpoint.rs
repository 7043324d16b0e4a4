//! The state of a run in one file, which rank 0 writes and all ranks read.

use burn::tensor::{Bytes, DType};
use burn::{module::Module, store::ModuleRecord};
use burn_amp::{ScaledOptimizer, optim::FusedAdam};
use burn_pack::{Reader, Tensor, Writer};
use digits::{Result, model::Network};
use std::path::Path;

/// Writes network, optimizer and loss scale: beside the file first, then renamed.
pub fn save(path: &Path, model: &Network, optim: &mut ScaledOptimizer<FusedAdam>) -> Result<()> {
    let part = |name: &str, bytes: Bytes| {
        let length = bytes.len();
        Tensor::new(name.to_string(), DType::U8, vec![length], None, bytes)
    };
    let model = part("model", model.clone().into_record().into_bytes()?);
    let optim = part("optim", optim.into_bytes()?);
    let writer = Writer::new(vec![model, optim]).auto_extension(false);
    let written = writer.write_to_file(path);
    written.map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// Reads them. The steps that were made are those that the optimizer has counted.
pub fn load(
    path: &Path,
    model: Network,
    optim: &mut ScaledOptimizer<FusedAdam>,
) -> Result<Network> {
    let reader = Reader::from_file_exact(path)?;
    let bytes = |name| Ok::<_, burn_pack::Error>(Bytes::from_bytes_vec(reader.tensor_data(name)?));
    let model = model.try_load_record(ModuleRecord::from_bytes(bytes("model")?)?)?;
    optim.from_bytes(bytes("optim")?)?;
    Ok(model)
}
