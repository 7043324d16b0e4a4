#[cfg(feature = "cubecl")]
mod cubecl;
pub mod fallback;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod flex_blend;
#[cfg(all(feature = "cubecl", feature = "fusion"))]
mod fusion;
pub(crate) mod host;
