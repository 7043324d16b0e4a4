//! Steps of an optimizer that are not made, but recorded, or followed on the host while a device makes them again.

use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{BufferAddress, DeviceScale, UpdateRow};

/// The part of a pass over parameters in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rehearses {
    /// It runs and changes nothing, as before a recording.
    Run,
    /// It is recorded, with rows that a replay finds in their places.
    Recording,
    /// It is part of a replay: only the rows are sent, and the host counts the step.
    Replay,
}

/// A pass over parameters that is recorded, or made by a replay, and the rows that it reads on the device.
#[derive(Debug)]
pub struct Rehearsal {
    /// The part of the step in a recording.
    pub what: Rehearses,
    /// The rows of each call of the kernel.
    pub(super) rows: Vec<Tensor<1>>,
    /// Set as long as all that is written stays in its place.
    pub(super) stays: bool,
}

impl Rehearsal {
    /// Begins one with the rows that the recording reads, if there are any yet.
    pub fn new(what: Rehearses, rows: Vec<Tensor<1>>) -> Self {
        Self {
            what,
            rows,
            stays: true,
        }
    }

    /// The rows of one call, where a replay will read them.
    pub fn sent(
        &mut self,
        call: usize,
        rows: &[UpdateRow],
        times: &[u32],
        gradients: &[u32],
        device: &Device,
    ) -> Tensor<1> {
        let sent = match self.what {
            Rehearses::Recording => return self.rows[call].clone(),
            Rehearses::Replay => DeviceScale::send(rows, times, gradients, device),
            Rehearses::Run => {
                let rows = rows.iter().map(|row| UpdateRow { taken: 0.0, ..*row });
                DeviceScale::send(&rows.collect::<Vec<_>>(), times, gradients, device)
            }
        };
        match self.rows.get_mut(call) {
            Some(place) => place.inplace(|place| place.slice_assign(.., sent)),
            None => self.rows.push(sent),
        }
        self.rows[call].clone()
    }

    /// Notes whether results took the place of what they were made of.
    pub fn compare(&mut self, before: &[Option<BufferAddress>], after: &[Option<BufferAddress>]) {
        self.stays &= after.iter().all(|place| before.contains(place));
    }
}
