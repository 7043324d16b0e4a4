//! The schedule of a loss scale on the device: so that a step need not be waited for to know the next scale.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_amp_kernels::{ScaleState, TensorList, inspect};
//!
//! let device = Device::flex();
//! let mut scale = ScaleState { growth_interval: 2000, ..ScaleState::new(65536.0) }.upload(&device);
//! let mut gradients = TensorList::new();
//! gradients.push(Tensor::<1>::from_floats([1.0, f32::INFINITY], &device));
//!
//! let status = inspect(gradients)?;
//! scale = scale.advance(&status, None, &[]); // halved, if the gradients overflow; nothing is read
//! assert_eq!(scale.read().scale, 32768.0);
//! # Ok::<(), burn_amp_kernels::UnsupportedDType>(())
//! ```

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};

use crate::ops::{BufferAddress, first};
use crate::rule::{self, ScaleState, WORDS, word};
use crate::step::{UNDECIDED, UpdateRow, UpdateRule};
use crate::words::{upload, words_of};
use crate::{Job, Status, UnreadEvent, device::has_kernels};

impl ScaleState {
    /// Sends the state to a device. Does not wait for it.
    pub fn upload(self, device: &Device) -> DeviceScale {
        let mut words = self.words();
        rule::write_factor(&mut words);
        DeviceScale(upload(words, [WORDS], device))
    }
}

/// A [`ScaleState`] that lives on a device, and moves there.
#[derive(Clone, Debug)]
pub struct DeviceScale(Tensor<1>);

impl DeviceScale {
    /// The state after a step with gradients of this status: skipped if any value was not finite. Does not wait for the device.
    ///
    /// `border` is what was found where these gradients came to the border, and `given` what was found where they left half precision again. If
    /// they were not finite at the border already, the scale is not the cause, and it stays as it is. Nor is it where something was `given`, all
    /// of it is finite, and nothing overflowed at the border.
    ///
    /// # Panics
    ///
    /// If the status is of another device, or of a backend without kernels.
    #[must_use]
    pub fn advance(
        self,
        status: &Status,
        border: Option<&UnreadEvent>,
        given: &[UnreadEvent],
    ) -> Self {
        let Some(rows) = status.rows.clone() else {
            return self;
        };
        let largest = border.map_or(f32::MAX, UnreadEvent::largest);
        let rows_of = |event: &UnreadEvent| event.status.rows.clone();
        let border = border.and_then(rows_of);
        let mut given: Vec<_> = given.iter().filter_map(rows_of).collect();
        if given.len() > 1 {
            given = vec![Tensor::cat(given, 0)];
        }
        let given = given.into_iter().filter(|_| border.is_some());
        let tensors = [self.0, rows]
            .into_iter()
            .chain(border.clone())
            .chain(given);
        let tensors: Vec<_> = tensors.map(Tensor::into_dispatch).collect();
        // A status may be in f64, which is no dtype of the others.
        assert!(
            has_kernels(&tensors[0]),
            "there is no kernel for this device"
        );
        let next = first::<Dispatch>(tensors, Job::Advance { largest });
        Self(Tensor::from_dispatch(next))
    }

    /// Sends what [`decide`](Self::decide) takes to a device: to be decided there later, and more than once. Flat, in f32. Does not wait.
    ///
    /// `rows` are as for a step that is taken, but those of `Adam` and `AdamW` have the optimizer's own `epsilon` and no corrections: the
    /// device knows them. `times` are the steps of each parameter up to this one, as if none had been skipped since this state was
    /// [uploaded](ScaleState::upload). `gradients` says which of those that are clipped is each parameter's.
    pub fn send(
        rows: &[UpdateRow],
        times: &[u32],
        gradients: &[u32],
        device: &Device,
    ) -> Tensor<1> {
        let each = rows.iter().zip(times).zip(gradients);
        let words = each.map(|((row, time), gradient)| (row.words(), [*time, *gradient]));
        let words = words.flat_map(|(row, others)| row.into_iter().chain(others));
        upload(words, [rows.len() * UNDECIDED], device)
    }

    /// The rows of an [`update`](crate::update) that this decides, of what was [sent](Self::send): taken unless the last step was skipped. Of
    /// shape `[parameters, 12]`; does not wait for the device.
    ///
    /// `factors` are those by which gradients are clipped, of a [`ClipTable`](crate::ClipTable): each row's `scale` is multiplied by its gradient's.
    pub fn decide(
        &self,
        rule: UpdateRule,
        sent: Tensor<1>,
        factors: Option<Tensor<1>>,
    ) -> Tensor<2> {
        let tensors = [sent, self.0.clone()].into_iter().chain(factors);
        let tensors = tensors.map(Tensor::into_dispatch);
        Tensor::from_dispatch(first::<Dispatch>(tensors, Job::Decide { rule }))
    }

    /// Becomes another state, in its own memory if nobody else holds it. Does not wait for the device.
    #[must_use]
    pub fn become_of(self, other: Self) -> Self {
        Self(self.0.slice_assign(.., other.0))
    }

    /// Where its words are: see [`BufferAddress`].
    pub fn address(&self) -> Option<BufferAddress> {
        BufferAddress::of(self.0.clone().into_dispatch())
    }

    /// What gradients are multiplied by on their way in, and out again: of shape `[1]`, in f32. Does not wait for the device.
    pub fn factors(&self) -> [Tensor<1>; 2] {
        [word::FACTOR, word::INVERSE].map(|word| self.word(word))
    }

    /// Whether the last step was skipped: 1 or 0, of shape `[1]`, in f32. Does not wait for the device.
    pub fn found_inf(&self) -> Tensor<1> {
        self.word(word::FOUND)
    }

    fn word(&self, word: usize) -> Tensor<1> {
        self.0.clone().slice(word..word + 1)
    }

    /// Reads the state. Waits for the device, for one transfer of 92 bytes.
    pub fn read(&self) -> ScaleState {
        ScaleState::of(&words_of(&self.0.to_data()))
    }
}
