pub(crate) mod fallback;
#[cfg(feature = "flex")]
mod flex;
