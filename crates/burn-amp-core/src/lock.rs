//! How this crate locks, and what it says meanwhile: a logger may ask for what a lock guards, so no line is written while one is held.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::beside_burn::{Beside, during};

/// A call that writes to the log.
type Line = Box<dyn FnOnce()>;

thread_local! {
    /// The number of locks that this thread holds.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// Lines that it writes when it holds none.
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// Set while it writes none.
    static QUIET: Beside<()> = const { RefCell::new(None) };
}

#[cfg(test)]
thread_local! {
    /// The addresses of the locks that this thread has taken.
    pub(crate) static TAKEN: RefCell<std::collections::BTreeSet<usize>> = RefCell::default();
}

/// The value behind a lock, also after a panic that held it: none of ours leaves one half written.
pub fn locked<T: ?Sized>(value: &Mutex<T>) -> Guard<'_, T> {
    #[cfg(test)]
    checked::wait_for(value);
    #[cfg(test)]
    TAKEN.with_borrow_mut(|taken| taken.insert(std::ptr::from_ref(value).addr()));
    let value = value.lock().unwrap_or_else(PoisonError::into_inner);
    LOCKS.set(LOCKS.get() + 1);
    Guard {
        value,
        _held: Counted,
    }
}

/// A lock that is held.
pub struct Guard<'a, T: ?Sized> {
    /// Given back first.
    value: MutexGuard<'a, T>,
    _held: Counted,
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

struct Counted;

/// Writes the lines that were said under the last lock.
impl Drop for Counted {
    fn drop(&mut self) {
        let held = LOCKS.get() - 1;
        LOCKS.set(held);
        if held == 0 {
            // None are left where the thread is at its end.
            let lines = LINES.try_with(RefCell::take).unwrap_or_default();
            lines.into_iter().for_each(|line| line());
        }
    }
}

/// Does work of which the log has been told, or will be.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    during(&QUIET, (), work).0
}

/// Says whether this thread writes no lines now.
pub(crate) fn is_quiet() -> bool {
    QUIET.with_borrow(Option::is_some)
}

/// Writes a line to the log: now, or when this thread holds no lock.
pub(crate) fn unlocked(line: impl FnOnce() + 'static) {
    // At the end of a thread nothing is kept for later.
    match LOCKS.get() > 0 && LINES.try_with(|_| ()).is_ok() {
        _ if is_quiet() => {}
        true => LINES.with_borrow_mut(|lines| lines.push(Box::new(line))),
        false => line(),
    }
}

/// Every lock is a place where a model checker may let another thread go on. It runs all of them on one thread of the system.
#[cfg(test)]
pub(crate) mod checked {
    use std::cell::Cell;
    use std::sync::{Mutex, TryLockError};

    thread_local! {
        static IS_CHECKED: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a protocol in so many random orders, and in as many with few preemptions.
    pub(crate) fn check(protocol: fn(), orders: usize) {
        const DEPTH: usize = 3;
        IS_CHECKED.set(true);
        shuttle::check_random(protocol, orders);
        shuttle::check_pct(protocol, orders, DEPTH);
        IS_CHECKED.set(false);
    }

    /// Whoever holds it goes on first. Where nobody ever gives it back, the checker says that it has come to no end.
    pub(super) fn wait_for<T: ?Sized>(value: &Mutex<T>) {
        if !IS_CHECKED.get() {
            return;
        }
        shuttle::thread::yield_now();
        while matches!(value.try_lock(), Err(TryLockError::WouldBlock)) {
            shuttle::thread::yield_now();
        }
    }
}
