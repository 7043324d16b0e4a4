//! What burn-amp logs, on the thread that asks: every test has a thread of its own.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::{Arc, Mutex, Once};
use std::thread::{self, ThreadId};

struct Logger;

type Listener = Arc<dyn Fn() + Send + Sync>;

/// What the logger calls at each line of any thread.
static LISTENERS: Mutex<Vec<Listener>> = Mutex::new(Vec::new());

static LINES: Mutex<Vec<(ThreadId, Level, String)>> = Mutex::new(Vec::new());

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.target().starts_with("burn_amp")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let line = record.args().to_string();
            let listeners = LISTENERS.lock().unwrap().clone();
            listeners.into_iter().for_each(|listener| listener());
            let here = thread::current().id();
            LINES.lock().unwrap().push((here, record.level(), line));
        }
    }

    fn flush(&self) {}
}

fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
}

/// From here on the logger calls `listener` at each line of any thread.
pub fn listen(listener: impl Fn() + Send + Sync + 'static) {
    install();
    LISTENERS.lock().unwrap().push(Arc::new(listener));
}

/// All that this thread has logged so far, `action` included.
fn lines(action: impl FnOnce()) -> Vec<(Level, String)> {
    install();
    action();
    let (all, here) = (LINES.lock().unwrap(), thread::current().id());
    let mine = all.iter().filter(|(thread, ..)| *thread == here);
    mine.map(|(_, level, line)| (*level, line.clone()))
        .collect()
}

/// Runs `action` and returns the messages of this level that were logged meanwhile.
pub fn captured(level: Level, action: impl FnOnce()) -> Vec<String> {
    let here = thread::current().id();
    LINES.lock().unwrap().retain(|(thread, ..)| *thread != here);
    let mine = lines(action).into_iter().filter(|(at, _)| *at == level);
    mine.map(|(_, line)| line).collect()
}

/// Runs `action` and returns all lines so far that contain `text`, each after its level.
pub fn logs(text: &str, action: impl FnOnce()) -> Vec<String> {
    let found = lines(action).into_iter();
    let found = found.filter(|(_, line)| line.contains(text));
    let lines = found.map(|(level, line)| format!("{level}: {line}"));
    lines.collect()
}
