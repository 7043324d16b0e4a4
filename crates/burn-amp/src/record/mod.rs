//! How this crate's state is stored: one sealed section in a burnpack, Burn's own container.
//!
//! The section is a JSON text in the container's metadata, beside a version, a kind and a CRC-32 over everything
//! in the container (tensors, scalars, metadata). Burn's readers ignore all four, so an optimizer's record with
//! such a section is still an optimizer's record.

mod checksum;
mod container;
mod file;
mod tensors;

pub(crate) use container::{Container, Kind};
