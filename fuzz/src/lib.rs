//! The readers of `tests/records/readers.rs`, for `cargo fuzz`.

#[path = "../../tests/records/forge.rs"]
mod forge;
#[path = "../../tests/records/readers.rs"]
pub mod readers;

mod support {
    #[path = "../../../tests/records/support/bits.rs"]
    mod bits;
    #[path = "../../../tests/records/support/quiet.rs"]
    mod quiet;
    #[path = "../../../tests/records/support/small.rs"]
    mod small;

    pub use bits::{Pack, pack, parameters};
    pub use quiet::quietly;
    pub use small::{Small, adam, master_adam, momentum};
}
