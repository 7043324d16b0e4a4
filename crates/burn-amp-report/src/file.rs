//! Files of a report: what was there stays until the new one is whole.

use burn_amp_core::internal::observe::write_whole;
use std::{fs, path::Path};

use crate::error::ReportError;

pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    let written = write_whole(path, |beside| fs::write(beside, text));
    written.map_err(|reason| ReportError::file(path, reason))
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), ReportError> {
    match path.exists() {
        true => fs::remove_file(path).map_err(|error| ReportError::file(path, error)),
        false => Ok(()),
    }
}

pub(crate) fn create_folder(folder: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(folder).map_err(|error| ReportError::file(folder, error))
}
