//! The readers of `tests/records/readers.rs`, for `cargo fuzz`.

#[path = "../../tests/records/forge.rs"]
pub mod forge;
#[path = "../../tests/records/readers.rs"]
pub mod readers;

pub mod support;
