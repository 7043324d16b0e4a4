//! How this crate locks, and what it says meanwhile: a logger may ask for what a lock guards, so no line is written while one is held.

use log::{Level, Record};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The number of locks that this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// Lines that it writes when it holds none.
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
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
    HELD.set(HELD.get() + 1);
    Guard { value, _held: Held }
}

/// A lock that is held.
pub struct Guard<'a, T: ?Sized> {
    /// Given back first.
    value: MutexGuard<'a, T>,
    _held: Held,
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

struct Held;

/// Writes the lines that were said under the last lock.
impl Drop for Held {
    fn drop(&mut self) {
        let held = HELD.get() - 1;
        HELD.set(held);
        if held == 0 {
            // None are left where the thread is at its end.
            let lines = LINES.try_with(RefCell::take).unwrap_or_default();
            lines.into_iter().for_each(Line::write);
        }
    }
}

/// The place in the code that a line of the log comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

struct Line {
    level: Level,
    origin: Origin,
    text: String,
}

impl Line {
    fn write(self) {
        write_line(self.level, self.origin, format_args!("{}", self.text));
    }
}

/// Writes a line to the log: now, or when this thread holds no lock.
pub(crate) fn log_line(level: Level, origin: Origin, text: fmt::Arguments<'_>) {
    if level > log::max_level() {
        return;
    }
    let later = || {
        let line = Line {
            level,
            origin,
            text: text.to_string(),
        };
        LINES
            .try_with(|lines| lines.borrow_mut().push(line))
            .is_ok()
    };
    if HELD.get() == 0 || !later() {
        write_line(level, origin, text);
    }
}

fn write_line(level: Level, origin: Origin, text: fmt::Arguments<'_>) {
    log::logger().log(
        &Record::builder()
            .level(level)
            .target(origin.module)
            .module_path_static(Some(origin.module))
            .file_static(Some(origin.file))
            .line(Some(origin.line))
            .args(text)
            .build(),
    );
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
