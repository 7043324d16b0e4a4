//! The composition of Burn's operations, on the same device.

suite!(crate::system::System::composed());
