//! Panics that a test expects.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
