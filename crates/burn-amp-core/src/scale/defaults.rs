//! The defaults of settings that are the fields of an enum's variants: of serde, and of constructors that name the variant alone.

use serde::de::DeserializeOwned;

/// A module `defaults`, with a function for each setting.
#[doc(hidden)]
#[macro_export]
macro_rules! defaults {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        mod defaults {
            $(pub(super) fn $name() -> $type { $value })*
        }
    };
}

pub use defaults;

/// The variant of this name, all of whose fields have defaults.
pub fn with_defaults<T: DeserializeOwned>(variant: &str) -> T {
    let without_fields = serde_json::json!({ variant: {} });
    serde_json::from_value(without_fields).expect("every setting has a default")
}
