//! Lines of the log, and warnings that reach a program without a logger too.

use log::Level;
use std::{fmt, io::Write, sync::Once};

use crate::lock::{Origin, log_line};

/// `log::log!`, when the thread holds no lock of this crate.
macro_rules! say {
    ($level:expr, $($message:tt)*) => {
        $crate::lock::log_line(
            $level,
            $crate::lock::Origin {
                module: module_path!(),
                file: file!(),
                line: line!(),
            },
            format_args!($($message)*),
        )
    };
}

/// `log::warn!`, when the thread holds no lock of this crate. Without a logger, the first one goes to standard error: Burn's plain loops install none.
#[doc(hidden)]
#[macro_export]
macro_rules! warn {
    ($($message:tt)*) => {
        $crate::macros::warn_at(module_path!(), file!(), line!(), format_args!($($message)*))
    };
}

macro_rules! info {
    ($($message:tt)*) => { say!(log::Level::Info, $($message)*) };
}

macro_rules! debug {
    ($($message:tt)*) => { say!(log::Level::Debug, $($message)*) };
}

/// Writes a warning to the log, as from that line of a program.
pub fn warn_at(module: &'static str, file: &'static str, line: u32, message: fmt::Arguments<'_>) {
    to_standard_error(message);
    log_line(Level::Warn, Origin { module, file, line }, message);
}

/// Writes the first warning of a process, if no logger is installed.
fn to_standard_error(message: fmt::Arguments<'_>) {
    static SAID: Once = Once::new();
    if log::max_level() == log::LevelFilter::Off {
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
