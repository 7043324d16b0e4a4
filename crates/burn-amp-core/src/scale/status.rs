use crate::scale::loss_scale::Measures;

/// The findings of one pass over the gradients. Host values: reading them never waits for a device.
///
/// All values are those of the *unscaled* gradients. A value that is finite while scaled and becomes
/// infinite by unscaling (a scale below 1) counts as not finite; PyTorch, which tests the scaled values,
/// lets it pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GradientStatus {
    pub(crate) gradients: usize,
    pub(crate) non_finite: u64,
    pub(crate) measures: Measures,
    pub(crate) overflow: Option<String>,
    pub(crate) clipping: Clipping,
}

/// The findings of clipping. The default is that of gradients that were not clipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clipping {
    /// Gradients that it has changed.
    pub(crate) changed: Option<usize>,
    pub(crate) norms: Vec<f64>,
    pub(crate) coefficient: Option<f64>,
}

impl GradientStatus {
    /// The number of gradients (tensors) seen. Parameters that are frozen or that the loss did not
    /// reach have none.
    pub fn gradients(&self) -> usize {
        self.gradients
    }

    /// The number of values that were looked at: 0 if there are no gradients.
    pub fn elements(&self) -> u64 {
        self.measures.elements
    }

    /// The number of values that are infinite or NaN.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// Returns true if any value is infinite or NaN: then the step is skipped, unless the scaler is disabled.
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
        self.measures.norm
    }

    /// The number of gradients (tensors) that clipping has changed; none if the gradients were not clipped.
    ///
    /// [`norm`](Self::norm) and the rest are from before clipping.
    pub fn clipped(&self) -> Option<usize> {
        self.clipping.changed
    }

    /// The L2 norms, before clipping, of the groups that are clipped by their global norm: that of all other parameters
    /// first, then those of the groups in the order in which they were added. Empty if nothing is clipped so.
    pub fn clip_norms(&self) -> &[f64] {
        &self.clipping.norms
    }

    /// The smallest factor by which clipping by a global norm, and hooks, have multiplied gradients; 1 where none was
    /// clipped, and none if nothing is clipped so.
    pub fn clip_coefficient(&self) -> Option<f64> {
        self.clipping.coefficient
    }

    /// The largest magnitude among the finite values; 0 if there are none.
    pub fn max_abs(&self) -> f64 {
        self.measures.max_abs
    }

    /// The number of values that are exactly zero, of either sign.
    pub fn zeros(&self) -> u64 {
        self.measures.zeros
    }

    /// The number of values near the top of f16 when they were scaled: from the `edge` of
    /// [`Schedule::NearTop`](crate::Schedule::NearTop), or of a [rule of your own](crate::schedule::Rule::count_from), on, infinities and NaN among
    /// them. With other schedules, those that are not finite.
    pub fn above(&self) -> u64 {
        self.measures.above
    }

    /// The share of values that are exactly zero, from 0 to 1; 0 if there are no values.
    pub fn zero_share(&self) -> f64 {
        match self.measures.elements {
            0 => 0.0,
            elements => self.measures.zeros as f64 / elements as f64,
        }
    }

    /// Returns true if there are values and every one of them is zero: the sign of an underflow.
    pub fn is_all_zero(&self) -> bool {
        self.measures.are_all_zero()
    }

    /// The status of gradients whose largest magnitude is `max_abs`: to try a schedule without gradients, by
    /// [`LossScale::adjust`](crate::LossScale::adjust). With 0, all of them are zero.
    pub fn with_max_abs(mut self, max_abs: f64) -> Self {
        let measures = &mut self.measures;
        measures.max_abs = max_abs;
        if max_abs == 0.0 {
            measures.elements = measures.elements.max(1);
            measures.zeros = measures.elements;
        }
        self
    }

    /// The status of so many values, of which `above` are near the top of f16; to the same end.
    pub fn with_values(mut self, elements: u64, above: u64) -> Self {
        let is_all_zero = self.is_all_zero();
        let measures = &mut self.measures;
        if is_all_zero {
            measures.zeros = elements;
        }
        (measures.elements, measures.above) = (elements, above);
        self
    }

    /// The measures that the rule of a loss scale is shown: for [`Evidence::Finite`](crate::schedule::Evidence::Finite).
    pub fn measures(&self) -> Measures {
        self.measures
    }
}
