use super::ClipStatus;

/// What one pass over the gradients has found. Host values: reading them never waits for a device.
///
/// All values are those of the *unscaled* gradients. A value that is finite while scaled and becomes
/// infinite by unscaling (a scale below 1) counts as not finite; PyTorch, which tests the scaled values,
/// lets it pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientStatus {
    pub(crate) gradients: usize,
    pub(crate) elements: u64,
    pub(crate) non_finite: u64,
    pub(crate) zeros: u64,
    pub(crate) norm: f64,
    pub(crate) max_abs: f64,
    pub(crate) overflow: Option<String>,
    pub(crate) clip: Option<ClipStatus>,
}

impl GradientStatus {
    /// The number of gradients (tensors) seen. Parameters that are frozen or that the loss did not
    /// reach have none.
    pub fn gradients(&self) -> usize {
        self.gradients
    }

    /// The number of values that were looked at: 0 if there are no gradients, or if the scaler is disabled and they were not
    /// clipped.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The number of values that are infinite or NaN.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// Whether any value is infinite or NaN: then the step is skipped, unless the scaler is disabled.
    pub fn has_overflow(&self) -> bool {
        self.non_finite > 0
    }

    /// The path of the first parameter, in the module's order, with a value that is not finite.
    pub fn overflow_parameter(&self) -> Option<&str> {
        self.overflow.as_deref()
    }

    /// The L2 norm over the finite values of all gradients, as if they were one vector.
    ///
    /// Squares are taken relative to the largest magnitude of their tensor, so that neither
    /// overflows nor underflows where the norm itself does not.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// What clipping has done after the pass; none if the gradients were not clipped. [`norm`](Self::norm) and the rest are
    /// from before.
    pub fn clip(&self) -> Option<&ClipStatus> {
        self.clip.as_ref()
    }

    /// The smallest number by which a group's gradients were multiplied to meet its global norm: 1 where they were within;
    /// none if no group is clipped by its global norm.
    pub fn clip_coefficient(&self) -> Option<f64> {
        self.clip
            .as_ref()
            .and_then(ClipStatus::smallest_coefficient)
    }

    /// The largest magnitude among the finite values; 0 if there are none.
    pub fn max_abs(&self) -> f64 {
        self.max_abs
    }

    /// The number of values that are exactly zero, of either sign.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// The share of values that are exactly zero, from 0 to 1; 0 if there are no values.
    pub fn zero_share(&self) -> f64 {
        if self.elements == 0 {
            0.0
        } else {
            self.zeros as f64 / self.elements as f64
        }
    }

    /// Whether there are values and every one of them is zero: the sign of an underflow.
    pub fn is_all_zero(&self) -> bool {
        self.elements > 0 && self.zeros == self.elements
    }

    /// Takes over the overflow of gradients that were added to these.
    pub(super) fn join(&mut self, other: Self) {
        self.non_finite += other.non_finite;
        self.overflow = self.overflow.take().or(other.overflow);
    }
}
