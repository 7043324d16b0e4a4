//! Where values are in a device's memory.

/// Where the values of a tensor are, to find out whether a result has taken their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub(crate) usize, pub(crate) u64);
