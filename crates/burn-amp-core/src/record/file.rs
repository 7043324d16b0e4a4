//! Files that are whole or not there at all: written beside their place, synced, renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const SUFFIX: &str = ".burn-amp.tmp";

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

/// Gives `write` a path beside `path`, and puts what it has written there in the place of `path`: a reader finds the old file or
/// the new one. A symbolic link is followed.
///
/// The new file has the old one's permissions from its first byte on. What a killed writer has left behind is removed.
pub fn write_whole<E: ToString>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), String> {
    let destination = Destination::of(path).map_err(|error| error.to_string())?;
    let folder = destination.folder.display();
    destination.remove_leftovers();
    let beside = |error: io::Error| format!("cannot write beside it, in `{folder}`: {error}");
    // Opened before anything is renamed: a folder that cannot be synced is found out while the old file is there.
    #[cfg(unix)]
    let opened = File::open(&destination.folder).map_err(beside)?;
    let mut scratch = Scratch::create(&destination).map_err(beside)?;
    write(&scratch.path).map_err(|error| error.to_string())?;
    scratch
        .publish(&destination)
        .map_err(|error| error.to_string())?;
    #[cfg(unix)]
    opened.sync_all().map_err(|error| {
        format!("the new file is in its place, but a power failure may undo that, because `{folder}` could not be synced: {error}")
    })?;
    Ok(())
}

/// Where a file goes.
struct Destination {
    target: PathBuf,
    folder: PathBuf,
    /// What the names of all scratch files for this target start with. Short, whatever the target's own name is.
    prefix: String,
    /// Those of the file that is there.
    permissions: Option<fs::Permissions>,
}

impl Destination {
    fn of(path: &Path) -> io::Result<Self> {
        let mut target = path.to_path_buf();
        // A rename would put a file in the place of the link.
        for _ in 0..40 {
            let Ok(link) = fs::read_link(&target) else {
                break;
            };
            target = target.parent().unwrap_or(Path::new("")).join(link);
        }
        let permissions = match fs::metadata(&target) {
            Ok(found) if found.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(found) => Some(found.permissions()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let name = target.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let prefix = format!(".{:08x}-", crc32fast::hash(name.as_encoded_bytes()));
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        Ok(Self {
            target,
            folder,
            prefix,
            permissions,
        })
    }

    /// Removes scratch files whose writers were killed: nobody holds their lock. That it fails is no reason not to save.
    fn remove_leftovers(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !cfg!(unix) || !name.starts_with(&self.prefix) || !name.ends_with(SUFFIX) {
                continue;
            }
            let file = OpenOptions::new().write(true).open(entry.path());
            if file
                .is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(entry.path()).is_ok())
            {
                info!(
                    "removed `{}`, which a save that was killed has left",
                    entry.path().display()
                );
            }
        }
    }
}

/// A file beside its place; removed unless it was published.
struct Scratch {
    path: PathBuf,
    file: File,
    published: bool,
}

impl Scratch {
    fn create(destination: &Destination) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(
                "{}{}-{number}{SUFFIX}",
                destination.prefix,
                std::process::id()
            );
            let path = destination.folder.join(name);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
                let mode = destination.permissions.as_ref().map(PermissionsExt::mode);
                // The writer itself must be able to open it.
                options.mode(mode.map_or(0o666, |mode| mode & 0o777 | 0o600));
            }
            let file = match options.open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            let scratch = Self {
                path,
                file,
                published: false,
            };
            // The lock says that its writer lives. Another process may have taken the file for a leftover before it was locked.
            let locked = || !matches!(scratch.file.try_lock(), Err(fs::TryLockError::WouldBlock));
            if !cfg!(unix) || (locked() && scratch.path.exists()) {
                return Ok(scratch);
            }
        }
    }

    fn publish(&mut self, destination: &Destination) -> io::Result<()> {
        if let Some(permissions) = &destination.permissions {
            self.file.set_permissions(permissions.clone())?;
        }
        self.file.sync_all()?;
        fs::rename(&self.path, &destination.target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.published {
            // Another error is on its way already.
            let _ = fs::remove_file(&self.path);
        }
    }
}
