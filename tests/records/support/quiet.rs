//! Calls that must not panic, thousands of times.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `action` without the message that a panic prints, one that is caught inside included.
///
/// # Errors
///
/// If it panics.
pub fn quietly<R>(action: impl FnOnce() -> R) -> Result<R, ()> {
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
    let result = catch_unwind(AssertUnwindSafe(action)).map_err(drop);
    QUIET.set(false);
    result
}
