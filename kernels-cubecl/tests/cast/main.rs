//! `scaled_cast` and `watched_cast` against a computation on the host.
//!
//! On the device that the features choose, or `BURN_DEVICE` where there are several. With feature `ndarray`,
//! `BURN_DEVICE=ndarray` names a backend without kernels.

mod check;
#[path = "../backend/device.rs"]
mod device;
mod graph;
#[path = "../backend/host.rs"]
mod host;
mod layouts;
#[path = "../backend/skipped.rs"]
mod skipped;
mod tensors;
#[cfg(feature = "cubecl")]
mod unfused;
mod values;
#[path = "../backend/views.rs"]
mod views;
mod watch;

use burn::tensor::{DType, Device, FloatDType, Shape, Tensor, TensorData, bf16, f16, s};
use burn_amp_kernels::*;
use {check::*, device::*, host::*, skipped::skipped, tensors::*, views::planes};
