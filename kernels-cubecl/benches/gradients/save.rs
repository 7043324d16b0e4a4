//! A file of JSON that is whole whenever it is read: benches write theirs anew with each row, and whoever stops them keeps it.

use serde::Serialize;
use std::{fs, path::Path};

pub fn save(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    let beside = path.with_extension("tmp");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
