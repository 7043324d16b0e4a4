//! The devices that can be asked for.

use burn::tensor::Device;
use clap::ValueEnum;

use crate::Result;

/// A Burn backend. All but Flex need the feature of their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Backend {
    Flex,
    Wgpu,
    Vulkan,
    Metal,
    Cuda,
    Rocm,
}

impl Backend {
    /// Its default device.
    ///
    /// # Errors
    ///
    /// If it was not compiled in.
    pub fn device(self) -> Result<Device> {
        match self {
            Self::Flex => Ok(Device::flex()),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Ok(Device::wgpu(Default::default())),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Ok(Device::vulkan(Default::default())),
            #[cfg(feature = "metal")]
            Self::Metal => Ok(Device::metal(Default::default())),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(Device::cuda(0)),
            #[cfg(feature = "rocm")]
            Self::Rocm => Ok(Device::rocm(0)),
            #[allow(unreachable_patterns)]
            other => {
                let name = format!("{other:?}").to_lowercase();
                Err(format!("this program has no {name}: build it with `--features {name}`").into())
            }
        }
    }
}
