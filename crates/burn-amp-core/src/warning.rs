//! Lines of the log, and warnings that reach a program without a logger too.

use std::{io::Write, sync::Once};

use crate::lock::is_quiet;

/// `log::log!`, when the thread holds no lock of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! say {
    ($level:expr, $($message:tt)*) => {{
        let level = $level;
        if level <= $crate::macros::log::max_level() {
            let text = format!($($message)*);
            $crate::macros::unlocked(move || $crate::macros::log::log!(level, "{text}"));
        }
    }};
}

/// `log::warn!`, when the thread holds no lock of this crate. Without a logger, the first one goes to standard error: Burn's plain loops install none.
#[doc(hidden)]
#[macro_export]
macro_rules! warn {
    ($($message:tt)*) => {{
        let text = format!($($message)*);
        $crate::macros::to_standard_error(&text);
        $crate::say!($crate::macros::log::Level::Warn, "{text}");
    }};
}

macro_rules! info {
    ($($message:tt)*) => { $crate::say!(log::Level::Info, $($message)*) };
}

macro_rules! debug {
    ($($message:tt)*) => { $crate::say!(log::Level::Debug, $($message)*) };
}

/// Writes the first warning of a process, if no logger is installed.
pub fn to_standard_error(message: &str) {
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
