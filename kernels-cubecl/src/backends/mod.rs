mod autodiff;
#[cfg(feature = "cubecl")]
mod cubecl;
pub mod fallback;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "cubecl")]
mod fusion;
pub(crate) mod host;
