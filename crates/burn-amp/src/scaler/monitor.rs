use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

use super::GradScaler;
use crate::{
    gradients::{ClipStatus, GradientStatus},
    loss_scale::StepOutcome,
    mixed_precision::MixedPrecision,
};

/// Steps that are remembered. Metrics run in a thread of their own and may be half as far behind: a slot that is being
/// written is not read.
const SLOTS: usize = 128;
const FIELDS: usize = 13;

/// A view of a loss scaler at work, for metrics, a progress bar, or threads of one's own.
///
/// Made by [`ScaledOptimizer::monitor`](crate::ScaledOptimizer::monitor). Clones see the same scaler. Reading takes
/// no lock and never waits for a device: all values are host values that the step has read anyway. The scaler's
/// state itself is not shared and cannot be changed from here.
///
/// ```
/// use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{GradScalerConfig, ScaledOptimizer};
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 2).init(&device);
/// let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), GradScalerConfig::new().init()?);
/// let monitor = optim.monitor();
///
/// let loss = model.forward(Tensor::<2>::random([8, 4], Distribution::Default, &device)).mean();
/// let grads = optim.backward(loss, &model);
/// model = optim.try_step(0.1, model, grads)?;
///
/// let last = std::thread::spawn(move || monitor.last()).join().unwrap();
/// assert_eq!((last.loss_scale, last.steps, last.skipped), (65536.0, 1, 0));
/// assert!(last.gradient_norm.is_some());
/// # let _ = model;
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Default)]
pub struct ScalerMonitor {
    shared: Arc<Shared>,
    /// How a `Learner` run that fails is ended.
    #[cfg(feature = "train")]
    pub(crate) ending: Arc<super::ending::Ending>,
}

/// What a [`ScalerMonitor`] tells of a step. Host values.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScalerReading {
    /// The loss scale after the step, that of the next one; 1 of a disabled scaler.
    pub loss_scale: f32,
    /// Optimizer steps so far, skipped ones included.
    pub steps: u64,
    /// Skipped steps so far.
    pub skipped: u64,
    /// Skipped steps in a row, up to this one; or dropped micro-batches.
    pub consecutive_skips: u64,
    /// Micro-batches so far that were left out of an accumulation window because they overflowed; no steps.
    pub dropped: u64,
    /// Gradients so far that were thrown away with `discard`; no steps.
    pub discarded: u64,
    /// Clean steps in a row since the loss scale last moved.
    pub growth_tracker: u32,
    /// Whether the step was skipped; none before the first step.
    pub outcome: Option<StepOutcome>,
    /// The L2 norm of the unscaled gradients of the step before clipping, over their finite values; none before the first
    /// step, and of a disabled scaler that does not clip.
    pub gradient_norm: Option<f64>,
    /// The largest magnitude among the finite unscaled gradients; none as for the norm.
    pub max_abs_gradient: Option<f64>,
    /// The share of gradient values that are exactly zero, from 0 to 1; none as for the norm.
    pub zero_gradients: Option<f64>,
    /// The number of gradients (tensors) that clipping has changed; none if the step was not clipped.
    pub clipped_gradients: Option<u64>,
    /// The smallest number by which a group's gradients were multiplied to meet its global norm: 1 where they were within;
    /// none if no group is clipped by its global norm.
    pub clip_coefficient: Option<f64>,
    /// Whether a step has made this reading, and not a state that was loaded.
    pub(crate) is_step: bool,
}

impl ScalerMonitor {
    /// A monitor that shows the present state of `scaler`, and follows it as far as it is published.
    pub(crate) fn new(scaler: &GradScaler) -> Self {
        // That of a `MixedPrecision` is shared by its optimizers.
        let monitor = scaler.precision().map(MixedPrecision::monitor);
        let monitor = monitor.unwrap_or_default();
        monitor.publish(scaler);
        monitor
    }

    /// What the last step was like. Before the first: the scaler as it was built or loaded.
    pub fn last(&self) -> ScalerReading {
        loop {
            let number = self.number();
            // Torn only if `SLOTS` steps were published meanwhile: then there is a newer one.
            if let Some(reading) = self.shared.read(number) {
                return reading;
            }
            std::hint::spin_loop();
        }
    }

    /// The loss scale of the next step.
    pub fn loss_scale(&self) -> f32 {
        self.last().loss_scale
    }

    /// Makes the state of `scaler` the last reading. Writers in several threads do not wait for each other.
    pub(crate) fn publish(&self, scaler: &GradScaler) {
        self.shared.write(&ScalerReading::of(scaler, false));
    }

    /// As [`publish`](Self::publish), at the end of a step.
    pub(crate) fn publish_step(&self, scaler: &GradScaler) {
        self.shared.write(&ScalerReading::of(scaler, true));
    }

    /// The number of the last reading: how often was published.
    pub(crate) fn number(&self) -> u64 {
        self.shared.published.load(Ordering::Acquire)
    }

    /// The reading after number `seen`, or the last one if that is long ago, and its number.
    #[cfg(feature = "train")]
    pub(crate) fn after(&self, seen: u64) -> Option<(u64, ScalerReading)> {
        let last = self.number();
        let behind = last.checked_sub(seen).filter(|behind| *behind > 0)?;
        let next = match behind > SLOTS as u64 / 2 {
            true => last,
            false => seen + 1,
        };
        Some((next, self.shared.read(next)?))
    }
}

impl std::fmt::Debug for ScalerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScalerMonitor")
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

impl ScalerReading {
    fn of(scaler: &GradScaler, is_step: bool) -> Self {
        let counters = scaler.counters();
        let status = scaler.last_status();
        let clip = status.and_then(GradientStatus::clip);
        Self {
            loss_scale: scaler.loss_scale(),
            steps: counters.steps(),
            skipped: counters.skipped(),
            consecutive_skips: counters.consecutive_skips(),
            dropped: counters.dropped(),
            discarded: counters.discarded(),
            growth_tracker: scaler.growth_tracker(),
            outcome: scaler.last_outcome(),
            gradient_norm: status.map(GradientStatus::norm),
            max_abs_gradient: status.map(GradientStatus::max_abs),
            zero_gradients: status.map(GradientStatus::zero_share),
            clipped_gradients: clip.map(|clip| clip.clipped() as u64),
            clip_coefficient: clip.and_then(ClipStatus::smallest_coefficient),
            is_step,
        }
    }

    fn to_fields(self) -> [u64; FIELDS] {
        let outcome = match self.outcome {
            None => 0,
            Some(StepOutcome::Applied) => 1,
            Some(StepOutcome::Skipped) => 2,
        };
        let flags = outcome
            | u64::from(self.gradient_norm.is_some()) << 2
            | u64::from(self.is_step) << 3
            | u64::from(self.clipped_gradients.is_some()) << 4
            | u64::from(self.clip_coefficient.is_some()) << 5;
        let bits = |value: Option<f64>| value.unwrap_or_default().to_bits();
        [
            self.loss_scale.to_bits().into(),
            self.steps,
            self.skipped,
            self.consecutive_skips,
            self.dropped,
            self.discarded,
            self.growth_tracker.into(),
            flags,
            bits(self.gradient_norm),
            bits(self.max_abs_gradient),
            bits(self.zero_gradients),
            self.clipped_gradients.unwrap_or_default(),
            bits(self.clip_coefficient),
        ]
    }

    fn from_fields(fields: [u64; FIELDS]) -> Self {
        let [
            scale,
            steps,
            skipped,
            in_a_row,
            dropped,
            discarded,
            tracker,
            flags,
            norm,
            max_abs,
            zeros,
            clipped,
            coefficient,
        ] = fields;
        let measured = |bits: u64| (flags & 4 != 0).then(|| f64::from_bits(bits));
        Self {
            loss_scale: f32::from_bits(scale as u32),
            steps,
            skipped,
            consecutive_skips: in_a_row,
            dropped,
            discarded,
            growth_tracker: tracker as u32,
            outcome: match flags & 3 {
                1 => Some(StepOutcome::Applied),
                2 => Some(StepOutcome::Skipped),
                _ => None,
            },
            gradient_norm: measured(norm),
            max_abs_gradient: measured(max_abs),
            zero_gradients: measured(zeros),
            clipped_gradients: (flags & 16 != 0).then_some(clipped),
            clip_coefficient: (flags & 32 != 0).then(|| f64::from_bits(coefficient)),
            is_step: flags & 8 != 0,
        }
    }
}

struct Shared {
    /// The number that the next writer takes.
    next: AtomicU64,
    /// The number of the newest reading that is complete.
    published: AtomicU64,
    slots: [Slot; SLOTS],
}

/// A reading under its number. One that is written over while it is read shows it by another number.
#[derive(Default)]
struct Slot {
    number: AtomicU64,
    fields: [AtomicU64; FIELDS],
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(1),
            published: AtomicU64::new(0),
            slots: std::array::from_fn(|_| Slot::default()),
        }
    }
}

impl Shared {
    fn write(&self, reading: &ScalerReading) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(number);
        slot.number.store(u64::MAX, Ordering::Relaxed);
        fence(Ordering::Release);
        for (field, value) in slot.fields.iter().zip(reading.to_fields()) {
            field.store(value, Ordering::Relaxed);
        }
        slot.number.store(number, Ordering::Release);
        self.published.fetch_max(number, Ordering::AcqRel);
    }

    /// The reading of this number, unless it was written over.
    fn read(&self, number: u64) -> Option<ScalerReading> {
        let slot = self.slot(number);
        if slot.number.load(Ordering::Acquire) != number {
            return None;
        }
        let fields = std::array::from_fn(|i| slot.fields[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (slot.number.load(Ordering::Relaxed) == number).then(|| ScalerReading::from_fields(fields))
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "train")]
    use super::SLOTS;
    use super::ScalerMonitor;
    use crate::GradScalerConfig;

    /// Every reading that a thread gets is one that was published, whole, and none is older than the one before.
    #[test]
    fn a_reader_in_another_thread_never_sees_half_a_reading() {
        let mut scaler = GradScalerConfig::new().init().unwrap();
        let monitor = ScalerMonitor::new(&scaler);
        let reader = {
            let monitor = monitor.clone();
            std::thread::spawn(move || {
                let (mut seen, mut different) = (0, 0);
                while seen < 20_000 {
                    let reading = monitor.last();
                    let number = u64::from(reading.growth_tracker);
                    assert_eq!(reading.loss_scale, 65536.0 + number as f32);
                    assert!(number >= seen, "{number} after {seen}");
                    different += u64::from(number > seen);
                    seen = number;
                }
                different
            })
        };
        scaler.set_growth_interval(1_000_000).unwrap();
        for number in 1..=20_000u32 {
            scaler.set_loss_scale(65536.0 + f64::from(number)).unwrap();
            scaler.set_growth_tracker(number).unwrap();
            monitor.publish(&scaler);
        }
        assert!(reader.join().unwrap() > 0);
    }

    #[test]
    #[cfg(feature = "train")]
    fn readings_come_in_order_and_none_is_left_out_while_remembered() {
        let mut scaler = GradScalerConfig::new().init().unwrap();
        let monitor = ScalerMonitor::new(&scaler);
        let mut publish = |scale: u32| {
            scaler.set_loss_scale(scale.into()).unwrap();
            monitor.publish(&scaler);
        };
        (1..=10).for_each(&mut publish);
        let mut seen = 1;
        for expected in 1..=10 {
            let (number, reading) = monitor.after(seen).unwrap();
            assert_eq!(number, expected + 1);
            assert_eq!(reading.loss_scale, expected as f32);
            seen = number;
        }
        assert!(monitor.after(seen).is_none());

        let last = 10 + SLOTS as u32;
        (11..=last).for_each(&mut publish);
        let (number, reading) = monitor.after(seen).unwrap();
        assert_eq!(number, u64::from(last) + 1);
        assert_eq!(reading.loss_scale, last as f32);
    }
}
