use burn::config::Config;
use serde::{Deserialize, Serialize};

use super::AccumulationWindow;
use crate::error::AmpError;

/// What a window's gradients become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WindowReduction {
    /// Their mean, the default: a window of micro-batches steps as one large batch would, with the loss as it is. Keras.
    #[default]
    Mean,
    /// Their sum, as PyTorch and Burn's `GradientsAccumulator` have it: divide each loss by the number of micro-batches.
    Sum,
}

/// What an overflow inside a window does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OverflowRule {
    /// One overflow skips the whole window, the default: gradients are summed while they are scaled, the loss scale stays
    /// the same inside the window, and the sum is tested once at its end. PyTorch's recipe, and Burn's accumulator.
    ///
    /// One pass (the sum) and no wait for each micro-batch.
    #[default]
    SkipWindow,
    /// A micro-batch that overflows is dropped and does not count: each is unscaled and tested as it comes, the window
    /// ends at the n-th clean one, and the loss scale moves at once. Keras.
    ///
    /// Two passes (unscaling and the sum) and one wait for each micro-batch; the one that fills the window has a third pass and
    /// a second wait, for the finished sum.
    SkipMicroBatch,
}

/// How gradients are accumulated.
///
/// ```
/// use burn_amp::{AccumulationConfig, OverflowRule, WindowReduction};
///
/// let window = AccumulationConfig::new(4).with_overflow(OverflowRule::SkipMicroBatch).init()?;
/// assert_eq!(window.config().reduction, WindowReduction::Mean);
///
/// let error = AccumulationConfig::new(0).init().unwrap_err();
/// assert_eq!(error.to_string(), "`micro_batches` is 0, but must be at least 1");
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct AccumulationConfig {
    /// Micro-batches in a window, which ends in one step. At least 1.
    pub micro_batches: u32,
    /// What their gradients become.
    #[config(default = "WindowReduction::Mean")]
    pub reduction: WindowReduction,
    /// What an overflow inside the window does.
    #[config(default = "OverflowRule::SkipWindow")]
    pub overflow: OverflowRule,
}

impl AccumulationConfig {
    /// Checks the settings and makes an empty window.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if `micro_batches` is 0.
    pub fn init(&self) -> Result<AccumulationWindow, AmpError> {
        if self.micro_batches == 0 {
            return Err(AmpError::invalid("micro_batches", 0, "at least 1"));
        }
        Ok(AccumulationWindow::new(self.clone()))
    }
}

impl From<u32> for AccumulationConfig {
    fn from(micro_batches: u32) -> Self {
        Self::new(micro_batches)
    }
}
