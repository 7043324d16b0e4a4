//! Files that are whole or not there at all: by Burn's `AtomicFile`, which writes beside their place, syncs and renames.

use burn_pack::AtomicFile;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file that `save` would have written for this path, or else the path itself.
///
/// Burn's readers look the other way round, and then find a folder or an older file of that name.
pub(super) fn saved_path(path: &Path) -> PathBuf {
    let saved = path.with_extension(burn_pack::EXTENSION);
    if path.extension().is_none() && (saved.is_file() || !path.exists()) {
        saved
    } else {
        path.to_path_buf()
    }
}

/// Gives `write` a path beside `path`, and puts what it has written there in the place of `path`: a reader finds the old file or the new one. A
/// symbolic link is followed. The new file has the old one's permissions from its first byte on.
pub fn write_whole<E: ToString>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), String> {
    let target = followed(path);
    let old = fs::metadata(&target);
    if let Err(error) = &old
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error.to_string());
    }
    let (scratch, file) = AtomicFile::create(&target).map_err(|error| error.to_string())?;
    #[cfg(unix)]
    if let Ok(old) = old {
        use std::os::unix::fs::PermissionsExt;
        // The writer itself must be able to open it.
        let mode = old.permissions().mode() & 0o777 | 0o600;
        let set = file.set_permissions(fs::Permissions::from_mode(mode));
        set.map_err(|error| error.to_string())?;
    }
    drop(file);
    write(scratch.path()).map_err(|error| error.to_string())?;
    scratch.commit().map_err(|error| error.to_string())
}

/// The file to which symbolic links lead: a rename would put a file in the place of the link.
fn followed(path: &Path) -> PathBuf {
    let mut target = path.to_path_buf();
    // As many as the system follows.
    for _ in 0..40 {
        let Ok(link) = fs::read_link(&target) else {
            break;
        };
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    target
}
