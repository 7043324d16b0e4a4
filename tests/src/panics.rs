//! Calls that must not panic, thousands of times.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::{cell::Cell, sync::Once, thread};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `action` without the message that a panic prints, one that is caught inside included.
///
/// # Errors
///
/// If it panics.
pub fn quietly<R>(action: impl FnOnce() -> R) -> thread::Result<R> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        // Other tests run beside this one, and their panics must be seen.
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(action));
    QUIET.set(false);
    result
}

/// The message of the panic that `action` must end in.
pub fn panic_message<R>(action: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(action)) else {
        panic!("it should have panicked");
    };
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"").to_string(),
    }
}
