//! Two dtypes in one operation: which devices refuse them.

use burn::backend::{Backend, Dispatch};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::answers::Answers;

static ANSWERS: Answers<(Device, FloatDType), bool> = Answers::new();

/// Whether Burn refuses a sum of `dtype` and f32 on a device, by a panic. Where it does not, it takes the bytes of one for values of the other.
///
/// CPU backends compare dtypes, and so does what queues operations: fusion, remote and capture devices; but not where it multiplies matrices. In Burn
/// 0.22.1, CubeCL devices without fusion launch whatever they are given. Such a device is asked by a sum of one value each, on the device without autodiff, once for each dtype in a process: a
/// launch that nobody reads. Others are not asked, because a panic would print its message. True for f32. Does not wait for the device.
///
/// # Panics
///
/// In Burn, if the device has not the dtype.
pub fn refuses_two_dtypes(device: &Device, dtype: FloatDType) -> bool {
    let device = device.clone().inner();
    // Fusion puts its own name before this one.
    let is_asked = Dispatch::name(device.as_dispatch()).starts_with("dispatch<cubecl<");
    if !is_asked || dtype == FloatDType::F32 {
        return true;
    }
    ANSWERS.of((device.clone(), dtype), || {
        let one = |dtype: FloatDType| Tensor::<1>::from_data([1.0], (&device, DType::from(dtype)));
        // Not the other way round: on wgpu, f32 first ends in an error that reaches the device later.
        let (narrow, wide) = (one(dtype), one(FloatDType::F32));
        catch_unwind(AssertUnwindSafe(|| narrow + wide)).is_err()
    })
}
