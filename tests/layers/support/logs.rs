//! What is logged.

use log::{LevelFilter, Log, Metadata, Record};
use std::sync::{Mutex, Once};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl Log for Logger {
    fn enabled(&self, _metadata: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        let line = format!("{}: {}", record.level(), record.args());
        LINES.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

/// Runs `action` and returns all lines logged so far, by other tests too, that contain `text`.
pub fn logs(text: &str, action: impl FnOnce()) -> Vec<String> {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
    action();
    let lines = LINES.lock().unwrap();
    let found = lines.iter().filter(|line| line.contains(text));
    found.cloned().collect()
}
