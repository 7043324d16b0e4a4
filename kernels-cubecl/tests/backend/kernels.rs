//! The functions of the crate: kernels where the backend has them.

suite!(crate::system::System::kernels());
