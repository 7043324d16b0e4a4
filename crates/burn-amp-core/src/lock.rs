//! How this crate locks, and what it says meanwhile: a logger may ask for what a lock guards, so no line is written while one is held.

use log::{Level, Record};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    /// How many locks this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// What it has to say when it holds none.
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// The value behind a lock, also after a panic that held it: none of ours leaves one half written.
pub fn locked<T: ?Sized>(value: &Mutex<T>) -> Guard<'_, T> {
    Guard {
        value: value.lock().unwrap_or_else(PoisonError::into_inner),
        _held: Held::new(),
    }
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

impl Held {
    fn new() -> Self {
        HELD.set(HELD.get() + 1);
        Self
    }
}

/// What was said under the last lock is written.
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

/// Where a line of the log comes from.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Origin {
    pub module: &'static str,
    pub file: &'static str,
    pub line: u32,
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
pub fn log_line(level: Level, origin: Origin, text: fmt::Arguments<'_>) {
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
