//! Settings as Burn has them: a `Config`, its defaults and its setters, from one list.

/// A struct of settings, a Burn `Config`: each with its setter, its type and its default.
#[doc(hidden)]
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])* $name:ident:
        $($(#[$doc:meta])* $field:ident, $with:ident: $type:ty = $default:expr,)*
    ) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl burn::config::Config for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&burn::config::config_to_json(self))
            }
        }

        impl $name {
            /// All settings at their defaults.
            pub fn new() -> Self {
                Self::default()
            }

            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                pub fn $with(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

pub use settings;
