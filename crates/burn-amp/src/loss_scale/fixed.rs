use super::{InvalidValue, dynamic::checked_scale};
use serde::{Deserialize, Serialize};

/// A loss scale that never moves: `jmp`'s `StaticLossScale`, Apex's and DeepSpeed's numeric `loss_scale`.
///
/// Steps with overflowing gradients are still skipped by the scaler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawStatic")]
pub struct StaticLossScale {
    scale: f32,
}

impl StaticLossScale {
    /// A constant loss scale, rounded to f32.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `scale` is positive and finite as an f32.
    pub fn new(scale: f64) -> Result<Self, InvalidValue> {
        checked_scale("init_scale", scale).map(|scale| Self { scale })
    }

    /// The factor by which the loss is multiplied.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    pub(super) fn with_scale(self, scale: f64) -> Result<Self, InvalidValue> {
        checked_scale("loss_scale", scale).map(|scale| Self { scale })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStatic {
    scale: f32,
}

impl TryFrom<RawStatic> for StaticLossScale {
    type Error = InvalidValue;

    fn try_from(raw: RawStatic) -> Result<Self, Self::Error> {
        Self::new(raw.scale.into())
    }
}
