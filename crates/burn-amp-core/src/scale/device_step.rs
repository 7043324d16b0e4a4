//! The loss scale on the device, and what it decides of the last step.

use burn::tensor::Tensor;
use burn_amp_kernels::{ClipTable, DeviceScale, Status, UnreadEvent};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::lock::{Guard, locked};
use crate::scale::rehearsal::Rehearsal;

/// The loss scale as the device moves it, further than the host's by the steps in flight. It also decides the last of them.
#[derive(Debug)]
pub struct DeviceStep {
    /// The scale on the device.
    pub scale: DeviceScale,
    factors: OnceLock<[Tensor<1>; 2]>,
    /// The steps that go on from one to the next.
    pub run: Arc<Run>,
    /// The optimizer whose steps move it.
    owner: Weak<()>,
    /// The recording of a step that is not made.
    rehearsal: Mutex<Option<Rehearsal>>,
    /// The table by which gradients are clipped, and the status of those of the last step.
    pub clip: Option<(ClipTable, Status)>,
}

impl DeviceStep {
    /// The loss scale as a device has it, before a step of `owner`.
    pub(crate) fn new(scale: DeviceScale, owner: Weak<()>) -> Self {
        Self {
            scale,
            factors: OnceLock::new(),
            run: Arc::default(),
            owner,
            rehearsal: Mutex::new(None),
            clip: None,
        }
    }

    /// Makes one for steps that are recorded.
    pub(crate) fn recorded(
        scale: DeviceScale,
        clip: Option<(ClipTable, Status)>,
        run: Arc<Run>,
        rehearsal: Rehearsal,
    ) -> Self {
        Self {
            clip,
            run,
            rehearsal: Mutex::new(Some(rehearsal)),
            ..Self::new(scale, Weak::new())
        }
    }

    /// The step that is recorded or replayed, if it is one.
    pub fn rehearsal(&self) -> Guard<'_, Option<Rehearsal>> {
        locked(&self.rehearsal)
    }

    /// Returns what is left of a step that was recorded: the scale after it, the rows that it reads, and whether all that it writes stays in its place.
    pub(crate) fn end(this: Arc<Self>) -> (DeviceScale, Vec<Tensor<1>>, bool) {
        let rehearsal = this.rehearsal().take();
        let (rows, stays) = rehearsal
            .map(|rehearsal| (rehearsal.rows, rehearsal.stays))
            .unwrap_or_default();
        let own = Arc::try_unwrap(this).map(|own| own.scale);
        let scale = own.unwrap_or_else(|shared| shared.scale.clone());
        (scale, rows, stays)
    }

    fn factors(&self) -> &[Tensor<1>; 2] {
        self.factors.get_or_init(|| self.scale.factors())
    }

    /// Says whether the optimizer is there whose steps move it.
    pub(super) fn has_owner(&self) -> bool {
        self.owner.strong_count() > 0
    }

    /// Moves it by a step with gradients of this status, which came to the border like this, and left half precision so.
    pub(crate) fn advance(
        &self,
        status: &Status,
        event: Option<&UnreadEvent>,
        given: &[UnreadEvent],
    ) -> Self {
        let scale = self.scale.clone().advance(status, event, given);
        Self {
            clip: (self.clip.clone()).map(|(table, _)| (table, status.clone())),
            run: self.run.clone(),
            ..Self::new(scale, self.owner.clone())
        }
    }

    /// The scale, of shape `[1]`.
    pub(crate) fn factor(&self) -> Tensor<1> {
        self.factors()[0].clone()
    }

    /// 1 over it.
    pub(crate) fn inverse(&self) -> Tensor<1> {
        self.factors()[1].clone()
    }
}

/// Steps in a row that nobody has waited for, from one that is resolved to the next.
///
/// Whether a step was skipped is counted on the device; the host counts the steps that it has launched, and reads the skips later. A copy of
/// an optimizer has a part of them: those that were given before it was made.
#[derive(Debug, Default)]
pub struct Run {
    given: AtomicUsize,
    skipped: Mutex<BTreeSet<usize>>,
}

impl Run {
    /// The number of one step more, from 0.
    pub(crate) fn next_number(&self) -> usize {
        self.given.fetch_add(1, Ordering::AcqRel)
    }

    /// Skips among the first `steps` that are resolved.
    pub fn skips(&self, steps: usize) -> usize {
        locked(&self.skipped).range(..steps).count()
    }

    /// The step of this number was skipped; which others may know.
    pub(crate) fn add_skip(&self, number: usize) {
        locked(&self.skipped).insert(number);
    }
}
