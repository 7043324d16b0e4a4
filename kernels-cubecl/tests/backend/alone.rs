//! What tests need that count launches: the observer sees all of the process.

use std::sync::{Mutex, MutexGuard};

use burn::{backend::DispatchDevice, tensor::Device};

/// One test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// None if the device is not one of CubeCL's.
pub fn cube(device: &Device) -> Option<&cubecl::Device> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => Some(device),
        // Which backends there are beside it depends on Burn's features.
        #[allow(unreachable_patterns)]
        _ => None,
    }
}

/// Whether the default device is a CPU that runs shaders: there, four tensors at most share a launch.
pub fn is_software() -> bool {
    let device = Device::default();
    cube(&device).is_some_and(|device| {
        let is_wgpu = matches!(device, cubecl::Device::Wgpu(_));
        is_wgpu && device.client().properties().identity.physical.is_none()
    })
}

/// Tensors of GPT-2 124M.
pub const GPT2: usize = 148;

/// The most launches over them on a device that takes so many, or where four tensors at most share one.
pub fn most_launches(on_hardware: usize) -> usize {
    if is_software() { GPT2 / 4 } else { on_hardware }
}

/// All that was asked of a device is done.
pub fn drain(device: &Device) {
    device.sync().expect("the device is well");
}
