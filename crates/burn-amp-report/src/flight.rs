//! The flight recorder: the last steps before something went wrong.

mod page;
mod ring;
mod step;

use burn_amp_core::MixedPrecision;
use burn_amp_core::internal::observe::{self, Observer, locked};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{error::ReportError, file};
pub(crate) use ring::Ring;
pub(crate) use step::{Recorded, read_steps};

/// Keeps what happened in the last 21 steps of a run, and writes it down when something goes wrong.
///
/// One line, in a loop of your own and for a `Learner`. It stays with the [`MixedPrecision`] and all its clones, also if this handle is dropped.
/// With a fused optimizer each step waits for the device while it is attached, and a `CapturedStep` is refused. It does not see the steps of a
/// `PipelinedOptimizer`.
///
/// ```
/// use burn::{
///     nn::LinearConfig, optim::{GradientsParams, SgdConfig},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::MixedPrecision;
/// use burn_amp_report::{FlightRecorder, probed};
///
/// # let folder = std::env::temp_dir().join("burn-amp-report-flight");
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let recorder = FlightRecorder::new(&folder, &amp)?; // this line
///
/// let (mut model, mut optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), SgdConfig::new().init());
/// for _ in 0..3 {
///     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
///     let output = amp.autocast(input, |x| probed("linear", x, |x| model.forward(x)));
///     let grads = GradientsParams::from_grads(output.mean().backward(), &model);
///     model = optim.step(0.1, model, grads);
/// }
/// assert!(recorder.written().is_empty()); // nothing went wrong
/// let page = recorder.write()?; // on request
/// assert!(page.ends_with("flight-3.html"));
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), burn_amp_report::ReportError>(())
/// ```
///
/// It writes `flight-<step>.html` and `flight-<step>.json` when two steps in a row are skipped, when the run cannot go on, and when a
/// [hook](burn_amp_core::hook::Hook) (a guard, say) rejects a step: which [`probe`](crate::probe()) was the first
/// that was not finite, magnitudes, loss scale, the parameters that overflow, and advice. A row of skips is written once, and again if it
/// ends the run.
///
/// What the probes see stays on the device until then: a finite step reads nothing for them. At each probe the gradient and the tensor are read
/// once, in the backward pass; the tensor is kept until then. The numbers of each step that the optimizer has read anyway go to `steps.jsonl`, which
/// `burn-amp-report` shows.
#[derive(Clone, Debug)]
pub struct FlightRecorder {
    ring: Arc<Ring>,
}

impl FlightRecorder {
    /// Attaches a recorder that writes to `folder`, which is made. It replaces another of the same `MixedPrecision`. Steps count from 1,
    /// or go on from those in the folder's `steps.jsonl`.
    ///
    /// # Errors
    ///
    /// [`ReportError::File`] if the folder cannot be made, or its `steps.jsonl` not be opened.
    pub fn new(folder: impl AsRef<Path>, amp: &MixedPrecision) -> Result<Self, ReportError> {
        let folder = folder.as_ref();
        file::create_folder(folder)?;
        let ring = Arc::new(Ring::new(folder)?);
        observe::set(amp, Some(ring.clone()));
        Ok(Self { ring })
    }

    /// Counts gradients by exponent at every n-th step, for the heat map of `burn-amp-report`; 0 for never. One pass over the gradients and one wait for
    /// the device at such a step. Not where gradients are not tested, as in f32.
    pub fn with_exponents_every(self, steps: u32) -> Self {
        locked(&self.ring.state).count_every = steps;
        self
    }

    /// Notes a number of the step that comes next, a loss for instance, which the report draws, in place of a `Learner`'s of that name.
    pub fn note(&self, name: &str, value: f64) {
        let notes = &mut locked(&self.ring.state).next.notes;
        notes.insert(name.to_string(), Some(value));
    }

    /// Writes the last steps now. Waits for the device. Returns the page.
    ///
    /// # Errors
    ///
    /// [`ReportError::File`].
    pub fn write(&self) -> Result<PathBuf, ReportError> {
        locked(&self.ring.state).write(&self.ring.folder, "on request")
    }

    /// The pages that were written so far.
    pub fn written(&self) -> Vec<PathBuf> {
        locked(&self.ring.state).written.clone()
    }

    /// Detaches the recorder: probes cost nothing from here on.
    pub fn detach(self, amp: &MixedPrecision) {
        let before = observe::set(amp, None);
        let is_own = |ring: *const dyn Observer| std::ptr::addr_eq(ring, Arc::as_ptr(&self.ring));
        // Another one may have taken its place.
        if let Some(other) = before.filter(|before| !is_own(Arc::as_ptr(before))) {
            observe::set(amp, Some(other));
        }
    }
}
