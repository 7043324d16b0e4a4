use burn::tensor::{DType, Device};

/// A list holds a dtype that the kernels of its device cannot read. Nothing was launched.
///
/// WGSL has no bf16, and f16 only where the device has the feature `shader-f16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedDType {
    /// The dtype.
    pub dtype: DType,
    /// The device, as Burn names it.
    pub device: String,
    /// Dtypes to train in there, the narrowest first.
    pub instead: Vec<DType>,
}

impl UnsupportedDType {
    /// That `device` cannot compute in `dtype`, and in what it can.
    pub fn new(device: &Device, dtype: DType) -> Self {
        let mut instead = vec![DType::BF16, DType::F16, DType::F32];
        instead.retain(|other| *other != dtype && device.supports_dtype(*other));
        Self {
            dtype,
            device: format!("{:?}", device.clone().inner()),
            instead,
        }
    }
}

impl std::fmt::Display for UnsupportedDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has no {:?}", self.device, self.dtype)?;
        let instead: Vec<String> =
            (self.instead.iter().map(|dtype| format!("{dtype:?}"))).collect();
        match instead.is_empty() {
            true => Ok(()),
            false => write!(f, ": train in {} there", instead.join(" or ")),
        }
    }
}

impl std::error::Error for UnsupportedDType {}
