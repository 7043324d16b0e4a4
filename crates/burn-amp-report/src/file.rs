//! Files are written beside their place and renamed: what was there stays until the new one is whole.

use std::{fs, path::Path};

use crate::error::ReportError;

pub(crate) fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = Path::new(&beside);
    let written = fs::write(beside, text).and_then(|()| fs::rename(beside, path));
    written.map_err(|error| {
        fs::remove_file(beside).ok();
        ReportError::file(path, error)
    })
}

pub(crate) fn create_folder(folder: &Path) -> Result<(), ReportError> {
    fs::create_dir_all(folder).map_err(|error| ReportError::file(folder, error))
}
