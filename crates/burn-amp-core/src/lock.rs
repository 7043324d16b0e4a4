//! How this crate locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value behind a lock, also after a panic that held it: none of ours leaves one half written.
pub fn locked<T: ?Sized>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
