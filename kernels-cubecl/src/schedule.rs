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
//! scale = scale.advance(&status, None); // halved, if the gradients overflow; nothing is read
//! assert_eq!(scale.read().scale, 32768.0);
//! # Ok::<(), burn_amp_kernels::UnsupportedDType>(())
//! ```

use burn::{
    backend::{Dispatch, DispatchTensor},
    tensor::{DType, Device, Tensor, TensorData},
};

use crate::{
    backends::has_kernels,
    clip::ClipTable,
    graph::Place,
    ops::{AmpOps, Job, TensorVec},
    rule,
    status::Status,
    update::{UNDECIDED, UpdateRow, UpdateRule},
    watch::Crossing,
    words::words,
};

words! {
    /// A loss scale, how it moves, and what steps have shown. Host values; the device has them as 32-bit words.
    ///
    /// The rule is that of PyTorch's `GradScaler`, with hysteresis (Megatron), bounds, a warm-up, and an interval that follows the
    /// run. All scales, factors and bounds are powers of two.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    ScaleState, WORDS, word:
    /// The loss scale, the warm-up's cap not counted.
    0 SCALE scale: f32,
    /// Clean steps since the scale last moved.
    1 TRACKER growth_tracker: u32,
    /// Overflows until the scale backs off, this one included.
    2 TOLERATED hysteresis_tracker: u32,
    /// Clean steps after which the scale grows.
    3 INTERVAL growth_interval: u32,
    /// Growths since the last overflow, or since the interval was halved.
    4 GROWTHS growths_in_a_row: u32,
    /// Steps of the warm-up that are over.
    5 WARMED warmup_step: u32,
    /// Steps, skipped ones included.
    6 STEPS steps: u32,
    /// Skipped steps.
    7 SKIPPED skipped: u32,
    /// Whether the last step was skipped: 1 or 0.
    8 FOUND found_inf: f32,
    /// Whether the scale moves: 1 or 0.
    9 DYNAMIC dynamic: u32,
    /// What a growth multiplies by.
    10 GROWTH growth_factor: f32,
    /// What an overflow multiplies by.
    11 BACKOFF backoff_factor: f32,
    /// Overflows until the scale backs off.
    12 HYSTERESIS hysteresis: u32,
    /// Whether a clean step restores all tolerated overflows: 1 or 0.
    13 CONSECUTIVE consecutive_hysteresis: u32,
    /// The scale backs off to no less; 0 for no bound.
    14 MIN min_scale: f32,
    /// The scale grows to no more; infinite for no bound.
    15 MAX max_scale: f32,
    /// The interval is doubled by an overflow, up to this; 0 if it is fixed.
    16 LONGEST max_interval: u32,
    /// The interval is halved by two growths in a row, down to this.
    17 SHORTEST min_interval: u32,
    /// Steps of the warm-up; 0 for none.
    18 WARMUP warmup_steps: u32,
    /// How often the cap doubles in the warm-up.
    19 LEVELS warmup_levels: u32,
    /// The cap of the first step.
    20 FIRST warmup_scale: f32,
    /// What the next gradients are multiplied by: the scale, as far as the warm-up allows, between 2^-126 and 2^126.
    21 FACTOR factor: f32,
    /// 1 over it: exact, as it is a power of two.
    22 INVERSE inverse: f32,
}

impl ScaleState {
    /// A scale that grows to twice its size in 2000 clean steps, and to half of it where one overflows.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            growth_interval: 2000,
            dynamic: 1,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            hysteresis: 1,
            hysteresis_tracker: 1,
            max_scale: f32::INFINITY,
            ..Self::default()
        }
    }

    /// The scale that counts: no larger than the warm-up allows.
    pub fn capped(&self) -> f32 {
        rule::capped(&self.words())
    }

    /// Moves the scale after a step: what [`DeviceScale::advance`] does, on the host. A step may have been skipped, and the scale may not be
    /// to blame for it.
    pub fn advance(&mut self, skipped: bool, blameless: bool) {
        let state = self.words();
        let mut next = state;
        rule::advance(&state, &mut next, skipped, blameless);
        *self = Self::of(&next);
    }

    /// As [`advance`](Self::advance), for a scale that moves by other numbers than this one's: counts a step and leaves the scale as it is.
    /// Returns whether it is to back off, if the step was skipped, or to grow.
    pub fn count(&mut self, skipped: bool) -> bool {
        let state = self.words();
        let mut next = state;
        let moves = rule::count(&state, &mut next, skipped);
        *self = Self::of(&next);
        moves
    }

    /// Counts a growth that has raised such a scale.
    pub fn count_growth(&mut self) {
        let state = self.words();
        let mut next = state;
        rule::count_growth(&state, &mut next);
        *self = Self::of(&next);
    }

    /// Sends the state to a device. Does not wait for it.
    pub fn upload(self, device: &Device) -> DeviceScale {
        let mut words = self.words();
        rule::write_factor(&mut words);
        let words = Tensor::<1>::from_data(data_of(words, [WORDS]), (device, DType::F32));
        DeviceScale(words.into_dispatch())
    }
}

/// Words, which are called floats: Burn's floats may be of one dtype only.
pub(crate) fn data_of<const D: usize>(
    words: impl IntoIterator<Item = u32>,
    shape: [usize; D],
) -> TensorData {
    let bytes = words.into_iter().flat_map(u32::to_ne_bytes);
    TensorData::from_bytes_vec(bytes.collect(), shape, DType::F32)
}

/// The words that are called floats.
pub(crate) fn words_of(data: &TensorData) -> Vec<u32> {
    let words = data.as_bytes().as_chunks().0.iter();
    words.map(|bytes| u32::from_ne_bytes(*bytes)).collect()
}

/// A [`ScaleState`] that lives on a device, and moves there.
#[derive(Clone, Debug)]
pub struct DeviceScale(DispatchTensor);

impl DeviceScale {
    /// The state after a step with gradients of this status: skipped if any value was not finite. Does not wait for the device.
    ///
    /// `crossing` is what was found where these gradients came to the border. If they were not finite there already, no scale is to blame,
    /// and it stays as it is.
    ///
    /// # Panics
    ///
    /// If the status is of another device, or of a backend without kernels.
    #[must_use]
    pub fn advance(self, status: &Status, crossing: Option<&Crossing>) -> Self {
        let Some(rows) = status.rows() else {
            return self;
        };
        assert!(has_kernels(&self.0), "there is no kernel for this device");
        let crossing = crossing.map(|crossing| crossing.rows.clone().into_dispatch());
        let tensors = [self.0, rows.into_dispatch()].into_iter().chain(crossing);
        let tensors = TensorVec(tensors.collect());
        Self(Dispatch::amp_run(tensors, Job::Advance).0.remove(0))
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
        let words = rows.iter().zip(times.iter().zip(gradients));
        let words = words
            .flat_map(|(row, (time, gradient))| row.words().into_iter().chain([*time, *gradient]));
        Tensor::from_data(
            data_of(words, [rows.len() * UNDECIDED]),
            (device, DType::F32),
        )
    }

    /// The rows of an [`update`](crate::update) that this decides, of what was [sent](Self::send): taken unless the last step was skipped. Of
    /// shape `[parameters, 12]`; does not wait for the device.
    ///
    /// `clip` is how gradients are clipped, and what was found in them: each row's `scale` is multiplied by the factor that
    /// [`clip_factors`](crate::clip_factors) gives.
    pub fn decide(
        &self,
        rule: UpdateRule,
        sent: Tensor<1>,
        clip: Option<(&ClipTable, &Status)>,
    ) -> Tensor<2> {
        let clip = clip.and_then(|(table, status)| table.with(status));
        let clip = clip.into_iter().flatten().map(Tensor::into_dispatch);
        let tensors = [sent.into_dispatch(), self.0.clone()].into_iter();
        let tensors = TensorVec(tensors.chain(clip).collect());
        let rows = Dispatch::amp_run(tensors, Job::Decide { rule }).0.remove(0);
        Tensor::from_dispatch(rows)
    }

    /// Becomes another state, in its own memory if nobody else holds it. Does not wait for the device.
    #[must_use]
    pub fn become_of(self, other: Self) -> Self {
        let [own, other] = [self.0, other.0].map(Tensor::<1>::from_dispatch);
        Self(own.slice_assign(.., other).into_dispatch())
    }

    /// Where its words are: see [`Place`].
    pub fn place(&self) -> Option<Place> {
        Place::of(self.0.clone())
    }

    /// What gradients are multiplied by on their way in, and out again: of shape `[1]`, in f32. Does not wait for the device.
    pub fn factors(&self) -> [Tensor<1>; 2] {
        let words = Tensor::<1>::from_dispatch(self.0.clone());
        [word::FACTOR, word::INVERSE].map(|word| words.clone().slice(word..word + 1))
    }

    /// Whether the last step was skipped: 1 or 0, of shape `[1]`, in f32. Does not wait for the device.
    pub fn found_inf(&self) -> Tensor<1> {
        let words = Tensor::<1>::from_dispatch(self.0.clone());
        words.slice(word::FOUND..word::FOUND + 1)
    }

    /// Reads the state. Waits for the device, for one transfer of 92 bytes.
    pub fn read(&self) -> ScaleState {
        let data = Tensor::<1>::from_dispatch(self.0.clone()).into_data();
        ScaleState::of(&words_of(&data))
    }
}
