//! Lines of the log, and warnings that reach a program without a logger too.

use log::Level;
use std::{io::Write, sync::Once};

use crate::lock::{is_quiet, unlocked};

/// `log::log!`, when the thread holds no lock of this crate.
macro_rules! say {
    ($level:expr, $($message:tt)*) => {{
        let level = $level;
        if level <= log::max_level() {
            let text = format!($($message)*);
            crate::lock::unlocked(move || log::log!(level, "{text}"));
        }
    }};
}

/// `log::warn!`, when the thread holds no lock of this crate. Without a logger, the first one goes to standard error: Burn's plain loops install none.
#[doc(hidden)]
#[macro_export]
macro_rules! warn {
    ($($message:tt)*) => { $crate::macros::write_warning(format!($($message)*), module_path!()) };
}

/// `warn!`, the first time in a process.
macro_rules! warn_once {
    ($($message:tt)*) => {{
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| $crate::warn!($($message)*));
    }};
}

macro_rules! info {
    ($($message:tt)*) => { say!(log::Level::Info, $($message)*) };
}

macro_rules! debug {
    ($($message:tt)*) => { say!(log::Level::Debug, $($message)*) };
}

/// Writes a warning of a module to the log.
pub fn write_warning(text: String, module: &'static str) {
    to_standard_error(&text);
    unlocked(move || log::log!(target: module, Level::Warn, "{text}"));
}

/// Writes the first warning of a process, if no logger is installed.
fn to_standard_error(message: &str) {
    static SAID: Once = Once::new();
    if log::max_level() == log::LevelFilter::Off && !is_quiet() {
        SAID.call_once(|| {
            // Not `eprintln!`, which panics where nobody reads.
            let _ = writeln!(
                std::io::stderr(),
                "burn-amp: {message}\nburn-amp: further warnings are lost, because no logger is installed. To see them, add the crate `env_logger`, \
                 and to `main`: `env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(\"warn\")).init();`"
            );
        });
    }
}
