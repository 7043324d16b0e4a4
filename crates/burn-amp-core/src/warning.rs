//! Lines of the log, and warnings that reach a program without a logger too.

use std::{fmt, io::Write, sync::Once};

/// `log::log!`, when the thread holds no lock of this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! say {
    ($level:expr, $($message:tt)*) => {
        $crate::log_line(
            $level,
            $crate::Origin {
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
    ($($message:tt)*) => {{
        $crate::to_standard_error(format_args!($($message)*));
        $crate::say!($crate::log::Level::Warn, $($message)*);
    }};
}

macro_rules! info {
    ($($message:tt)*) => { say!($crate::log::Level::Info, $($message)*) };
}

macro_rules! debug {
    ($($message:tt)*) => { say!($crate::log::Level::Debug, $($message)*) };
}

/// Once in a process, and only if no logger is installed.
pub fn to_standard_error(message: fmt::Arguments<'_>) {
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
