use burn_amp_core::AmpError;
use thiserror::Error;

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The loss could not be computed, or the device lacks the half precision that is judged.
    #[error(transparent)]
    Amp(#[from] AmpError),

    /// A file could not be read or written, or a folder holds no run.
    #[error("{path}: {reason}")]
    File {
        /// The file or folder.
        path: String,
        /// The words of the system, or what does not fit.
        reason: String,
    },
}

impl ReportError {
    pub(crate) fn file(path: &std::path::Path, reason: impl ToString) -> Self {
        Self::File {
            path: path.display().to_string(),
            reason: reason.to_string(),
        }
    }
}
