use thiserror::Error;

/// A setting outside its allowed range.
///
/// The message names the field, the value it was given and the range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{field}` is {value}, but must be {allowed}")]
pub struct InvalidValue {
    field: &'static str,
    value: String,
    allowed: String,
}

impl InvalidValue {
    pub(crate) fn new(
        field: &'static str,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> Self {
        Self {
            field,
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    /// The name of the refused field, as written in the code.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The refused value, printed.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The allowed range, in words.
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}
