//! `unscale`, `inspect` and `histogram` against a reference on the host, on the backend that the features choose.
//!
//! `cargo test -p burn-amp-kernels` runs on Flex, `cargo test -p burn-amp-kernels --features wgpu` on wgpu, and so on:
//! every test gets its device from [`device`], and every topic runs for each of the systems that have a `suite!`.
//! Where several backends are compiled in, the variable `BURN_DEVICE` chooses among them. With feature `ndarray`,
//! `BURN_DEVICE=ndarray` names a backend without kernels: `kernels` then runs on the fallback, as it does for a user.

#[macro_use]
mod suite;

mod blend;
mod case;
mod clip;
mod create;
mod device;
mod formula;
mod histogram;
mod host;
mod large;
mod layouts;
#[cfg(not(feature = "cubecl"))]
mod list;
mod number;
mod ownership;
mod random;
mod skipped;
mod system;
mod update;
mod values;
mod views;

/// The functions of the crate: kernels where the backend has them.
mod kernels {
    suite!(crate::system::System::kernels());
}

/// The composition of Burn's operations, on the same device. Where there are kernels nobody gets it, and on a device it takes minutes.
#[cfg(not(feature = "cubecl"))]
mod fallback {
    suite!(crate::system::System::composed());
}
