//! What messages say.

use std::fmt::Display;

/// Asserts that a message, or an error's, has all of these parts.
#[track_caller]
pub fn says<const N: usize>(message: &(impl Display + ?Sized), parts: [&str; N]) {
    let message = message.to_string();
    for part in parts {
        assert!(message.contains(part), "no {part} in: {message}");
    }
}

/// The only message that there is.
#[track_caller]
pub fn only(messages: &[String]) -> &str {
    let [message] = messages else {
        panic!("not one message: {messages:?}");
    };
    message
}
