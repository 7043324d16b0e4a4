//! A logger that keeps what each thread logs; every test runs in a thread of its own.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::{
    sync::{Mutex, Once},
    thread::{self, ThreadId},
};

struct Capture(Mutex<Vec<(ThreadId, Level, String)>>);

static CAPTURE: Capture = Capture(Mutex::new(Vec::new()));
static INSTALL: Once = Once::new();

impl Log for Capture {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target().starts_with("burn_amp")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let entry = (
                thread::current().id(),
                record.level(),
                record.args().to_string(),
            );
            self.0.lock().unwrap().push(entry);
        }
    }

    fn flush(&self) {}
}

/// Runs `action` and returns the messages of this level that burn-amp logged on this thread meanwhile.
pub fn captured(level: Level, action: impl FnOnce()) -> Vec<String> {
    INSTALL.call_once(|| {
        log::set_logger(&CAPTURE).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
    let thread = thread::current().id();
    CAPTURE.0.lock().unwrap().retain(|(id, ..)| *id != thread);
    action();
    let entries = CAPTURE.0.lock().unwrap();
    let mine = entries
        .iter()
        .filter(|(id, at, _)| (*id, *at) == (thread, level));
    mine.map(|(.., message)| message.clone()).collect()
}
