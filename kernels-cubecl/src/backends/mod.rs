#[cfg(feature = "cubecl")]
mod cubecl;
pub(crate) mod fallback;
#[cfg(feature = "flex")]
mod flex;
#[cfg(all(feature = "cubecl", feature = "fusion"))]
mod fusion;
