//! Accumulation: the gradients of several micro-batches, summed in f32, make one step.

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor};
use burn::{config::Config, optim::GradientsParams};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use crate::error::AmpError;
use crate::gradients::{Entry, unscale::log_unknown};
use crate::scale::border_events::{BorderEvent, BorderEvents, Explanation};
use crate::scale::finding::SkipCause;
use crate::values::{AnyTensor, ParamTensors, number::is_default, working_dtype};

/// The settings of accumulation.
///
/// ```
/// use burn_amp::AccumulationConfig;
///
/// let window = AccumulationConfig::new(4).with_skip_micro_batch(true).init()?;
/// assert!(!window.config().sum);
///
/// let error = AccumulationConfig::new(0).init().unwrap_err();
/// assert_eq!(error.to_string(), "`micro_batches` is 0, but must be at least 1");
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct AccumulationConfig {
    /// Micro-batches in a window, which ends in one step. At least 1.
    pub micro_batches: u32,
    /// Has a window step with the sum of its gradients, as in PyTorch and with Burn's `GradientsAccumulator`: divide each
    /// loss by the number of micro-batches then. By default it steps with their mean, as one large batch would, with the loss as
    /// it is (Keras).
    #[config(default = false)]
    pub sum: bool,
    /// Has an overflow drop only the micro-batch in which it is, which then does not count: each is unscaled and tested as
    /// it comes, the window ends at the n-th finite one, and the loss scale moves at once (Keras). Two passes (unscaling and the
    /// sum) and one wait for each micro-batch; the one that fills the window has a third pass and a second wait, for the
    /// finished sum.
    ///
    /// By default one overflow skips the whole window: gradients are summed while they are scaled, the loss scale stays the same
    /// inside the window, and the sum is tested once at its end (PyTorch's recipe, and Burn's accumulator). One pass (the sum)
    /// and no wait for each micro-batch.
    #[config(default = false)]
    pub skip_micro_batch: bool,
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
        Ok(AccumulationWindow {
            config: self.clone(),
            state: WindowState::default(),
        })
    }
}

impl From<u32> for AccumulationConfig {
    fn from(micro_batches: u32) -> Self {
        Self::new(micro_batches)
    }
}

/// The sums of a window that is being filled: one f32 tensor for each parameter (f64 for f64 parameters), added to in
/// place.
///
/// [`ScaledOptimizer::with_accumulation`](crate::ScaledOptimizer::with_accumulation) fills one inside `step`. With a
/// `GradScaler` alone, fill one yourself; [`to_record`](Self::to_record) saves a window that is open:
///
/// ```
/// use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{AccumulationConfig, GradScalerConfig, torch::GradScaler};
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 2).init(&device);
/// let mut optim = SgdConfig::new().init();
/// let mut scaler = GradScaler::new(GradScalerConfig::new())?;
/// let mut window = AccumulationConfig::new(4).init()?;
///
/// for _ in 0..8 {
///     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
///     let grads = scaler.backward(model.forward(input).square().mean(), &model);
///     if let Some(grads) = scaler.accumulate(&mut window, grads, &model)? {
///         model = scaler.step(&mut optim, 0.1, model, grads);
///         scaler.update()?;
///     }
/// }
/// assert_eq!(scaler.counters().steps(), 2);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// A value: a clone is independent.
#[derive(Clone, Debug)]
pub struct AccumulationWindow {
    pub(crate) config: AccumulationConfig,
    pub(crate) state: WindowState,
}

impl AccumulationWindow {
    /// The settings.
    pub fn config(&self) -> &AccumulationConfig {
        &self.config
    }

    /// The number of micro-batches in the window so far. Dropped ones do not count; those without any gradient do, as the part
    /// of a large batch that has none would.
    pub fn len(&self) -> u32 {
        self.state.len
    }

    /// Returns true if there is no micro-batch in the window.
    pub fn is_empty(&self) -> bool {
        self.state.len == 0
    }

    /// Says whether it is to be stepped with.
    pub(super) fn is_full(&self) -> bool {
        self.state.len >= self.config.micro_batches
    }

    /// The number of parameters that have a sum.
    pub fn gradients(&self) -> usize {
        self.state.sums.len()
    }

    /// The sum for a parameter, f32 or f64; none if no gradient of it was added. Unscaled with
    /// [`skip_micro_batch`](AccumulationConfig::skip_micro_batch), otherwise scaled by the window's loss scale. A handle to the
    /// same memory, on the parameter's device; does not wait.
    pub fn sum<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let sum = self.state.sums.get(&param.id).cloned();
        sum?.on(&param.device().inner())
    }

    /// Throws away what was summed; the next micro-batch is the first of a new window.
    pub fn clear(&mut self) {
        self.state = WindowState::default();
    }

    /// Adds `factor` times a micro-batch's gradients to the sums, in place, in f32 (f64 for f64 parameters). Does not wait for
    /// the device.
    pub(super) fn add(&mut self, mut grads: GradientsParams, entries: &[Entry], factor: f64) {
        for entry in entries {
            let Some(grad) = entry.take(&mut grads) else {
                continue;
            };
            let sum = match self.take_sum(entry.id, &grad.device()) {
                Some(sum) => sum.blend(grad, 1.0, factor),
                // The first gradient's memory becomes the sum's.
                None => grad.cast(working_dtype(entry.parameter)).mul_scalar(factor),
            };
            self.state.sums.insert(entry.id, sum.into());
        }
        log_unknown(grads.len());
        self.state.len += 1;
    }

    /// Takes a sum out, so that nothing else here holds its memory.
    fn take_sum(&mut self, id: ParamId, device: &Device) -> Option<AnyTensor> {
        self.state.sums.remove(&id)?.live(device)
    }

    /// Makes the sum of a parameter infinite, whose gradient overflowed and was replaced after its test: the window is skipped, as
    /// a step would be. If it has none, that of the first parameter that has.
    pub(super) fn add_overflow(&mut self, path: &str, why: Explanation, entries: &[Entry]) {
        (self.state.events).push_back(BorderEvent::explained(why));
        let first = entries.iter().find(|entry| entry.path == path);
        for entry in first.into_iter().chain(entries) {
            if let Some(sum) = self.take_sum(entry.id, &entry.device) {
                let infinite = sum.map(|sum| sum.full_like(f32::INFINITY));
                self.state.sums.insert(entry.id, infinite.into());
                return;
            }
        }
    }

    /// Empties the window: the sums, on their parameters' devices, and what they are to be divided by.
    pub(super) fn take(&mut self, entries: &[Entry]) -> (GradientsParams, f64) {
        let scale = f64::from(self.state.scale.unwrap_or(1.0));
        let divisor = match self.config.sum {
            true => scale,
            false => scale * f64::from(self.state.len.max(1)),
        };
        let mut sums = GradientsParams::new();
        for entry in entries {
            if let Some(sum) = self.take_sum(entry.id, &entry.device) {
                entry.put(&mut sums, sum);
            }
        }
        self.clear();
        (sums, divisor)
    }

    /// Says why a stored window cannot be continued with these settings, if it cannot.
    pub(crate) fn misfit(&self, state: &WindowState) -> Option<String> {
        if state.len == 0 {
            return None;
        }
        let (len, size) = (state.len, self.config.micro_batches);
        if len >= size {
            return Some(format!(
                "its window holds {len} micro-batches, but a window has {size} here"
            ));
        }
        // Such a window carries no loss scale.
        let (stored, here) = (state.scale.is_none(), self.config.skip_micro_batch);
        (stored != here).then(|| {
            format!("its window was summed with `skip_micro_batch` {stored}, but it is {here} here")
        })
    }
}

/// The state of an [`AccumulationWindow`], as it is stored: this beside the sums.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowState {
    pub(crate) len: u32,
    /// The loss scale that the sums carry; none where each micro-batch was unscaled.
    pub(crate) scale: Option<f32>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) losses: Losses,
    /// The cause of an overflow in it, and the regions at fault, as its events show them where it is stored.
    #[serde(default, skip_serializing_if = "is_default")]
    overflow: Option<(SkipCause, Vec<String>)>,
    /// The events at the border, to explain a skip, and for the factors of regions.
    #[serde(skip)]
    pub(crate) events: VecDeque<BorderEvent>,
    #[serde(skip)]
    pub(crate) sums: ParamTensors,
}

impl WindowState {
    /// As it is stored. Waits for the device.
    pub(crate) fn stored(mut self) -> Self {
        let events = BorderEvent::of_skip(self.events.clone());
        let found = BorderEvents::default().first_cause(events);
        let known = found.filter(|((cause, _), _)| *cause != SkipCause::Unknown);
        self.overflow = known.map(|((cause, regions), _)| {
            let names = regions.iter().map(|region| region.to_string());
            (cause, names.collect())
        });
        self
    }

    /// As it was stored, with its sums.
    pub(crate) fn with_sums(mut self, sums: ParamTensors) -> Self {
        let overflow = self.overflow.iter().map(|(cause, regions)| {
            let regions = regions.iter().map(|region| region.as_str().into());
            BorderEvent::explained((*cause, regions.collect()))
        });
        (self.sums, self.events) = (sums, overflow.collect());
        self
    }
}

/// Losses that a step is judged by: their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Losses {
    #[serde(with = "crate::values::number")]
    sum: f64,
    count: u32,
}

impl Losses {
    /// Adds one more, if there is one.
    pub(crate) fn and(self, loss: Option<f64>) -> Self {
        match loss {
            Some(loss) => Self {
                sum: self.sum + loss,
                count: self.count.saturating_add(1),
            },
            None => self,
        }
    }

    pub(crate) fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}
