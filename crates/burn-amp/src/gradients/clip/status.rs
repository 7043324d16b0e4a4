/// What clipping has done. Host values, of the same pass that unscaled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClipStatus {
    pub(super) norms: Vec<ClipNorm>,
    pub(super) clipped: usize,
}

impl ClipStatus {
    /// The groups that are clipped by their global norm, in the order in which they were added.
    pub fn norms(&self) -> &[ClipNorm] {
        &self.norms
    }

    /// The number of gradients (tensors) that clipping has changed.
    pub fn clipped(&self) -> usize {
        self.clipped
    }

    pub(crate) fn smallest_coefficient(&self) -> Option<f64> {
        let coefficients = self.norms.iter().map(ClipNorm::coefficient);
        coefficients.min_by(f64::total_cmp)
    }
}

/// The global norm of one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipNorm {
    pub(super) norm: f64,
    pub(super) max_norm: f64,
    pub(super) coefficient: f64,
}

impl ClipNorm {
    /// The L2 norm of the group's gradients before clipping.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// The threshold.
    pub fn max_norm(&self) -> f64 {
        self.max_norm
    }

    /// What the group's gradients were multiplied by: 1 where they were not clipped.
    pub fn coefficient(&self) -> f64 {
        self.coefficient
    }
}
