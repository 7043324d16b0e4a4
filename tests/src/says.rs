//! What messages say.

use crate::captured;
use burn_amp::AmpError;
use log::Level;
use std::fmt::Display;

/// Asserts that a message, or an error's, has all of these parts.
#[track_caller]
pub fn says<const N: usize>(message: &(impl Display + ?Sized), parts: [&str; N]) {
    let message = message.to_string();
    for part in parts {
        assert!(message.contains(part), "no {part} in: {message}");
    }
}

/// Asserts that an error is of this variant, and that its message has all of these parts.
#[track_caller]
pub fn is_error<const N: usize>(error: &AmpError, variant: &str, parts: [&str; N]) {
    let found = format!("{error:?}");
    assert!(found.starts_with(variant), "no {variant}: {found}");
    says(error, parts);
}

/// The only message that there is.
#[track_caller]
pub fn only(messages: &[String]) -> &str {
    let [message] = messages else {
        panic!("not one message: {messages:?}");
    };
    message
}

/// Asserts that an action warns of nothing.
#[track_caller]
pub fn no_warning(action: impl FnOnce()) {
    assert_eq!(captured(Level::Warn, action), [""; 0]);
}

/// Asserts that an action warns once, with a message that has all of these parts.
#[track_caller]
pub fn warns_once<const N: usize>(parts: [&str; N], action: impl FnOnce()) {
    says(only(&captured(Level::Warn, action)), parts);
}
