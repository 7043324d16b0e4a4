//! What the tests of records share.

pub use burn_amp_tests::{prelude::*, small::*};
pub use tempfile::{TempDir, tempdir};

/// A folder of its own, and a path of this name in it.
pub fn place(name: &str) -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

/// The names of what is in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// What a save that was interrupted has left.
pub fn scratch_files(folder: &Path) -> Vec<PathBuf> {
    let names = names(folder).into_iter();
    let scratch = names.filter(|name| name.ends_with(".tmp"));
    scratch.map(|name| folder.join(name)).collect()
}
