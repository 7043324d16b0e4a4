//! What a record holds of an open accumulation window and of averages, beside the optimizer's state.

use super::ScaledOptimizer;
use crate::{
    accumulation::AccumulationWindowRecord, ema::EmaRecord, error::AmpError, record::Container,
};

/// An open window and averages, as they are stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    pub(super) window: Option<AccumulationWindowRecord>,
    pub(super) ema: Option<EmaRecord>,
}

impl Around {
    /// The state of an optimizer.
    pub(super) fn of<O>(optim: &ScaledOptimizer<O>) -> Self {
        let window = (optim.options.window.as_ref()).filter(|window| !window.is_empty());
        let ema = optim.options.ema.as_ref().filter(|ema| ema.updates() > 0);
        Self {
            window: window.map(|window| window.to_record()),
            ema: ema.map(|ema| ema.to_record()),
        }
    }

    /// Puts the state beside the optimizer's. Waits for the device.
    pub(super) fn write(&self, container: &mut Container) {
        if let Some(window) = &self.window {
            window.write(container);
        }
        if let Some(ema) = &self.ema {
            ema.write(container);
        }
    }

    /// Takes the state out of a container, which is the optimizer's alone then.
    pub(super) fn take(container: &mut Container) -> Result<Self, AmpError> {
        Ok(Self {
            window: AccumulationWindowRecord::take(container)?,
            ema: EmaRecord::take(container)?,
        })
    }

    /// Why an optimizer cannot go on with this state, if it cannot.
    pub(super) fn misfit<O>(&self, optim: &ScaledOptimizer<O>) -> Option<String> {
        if let Some(record) = self.window.as_ref().filter(|record| !record.is_empty()) {
            let Some(window) = &optim.options.window else {
                return Some(format!(
                    "it holds a window of {} accumulated micro-batches, but there is no accumulation here: use \
                     `with_accumulation`, or drop them with `ScaledOptimizerRecord::without_window`",
                    record.len()
                ));
            };
            if let Some(reason) = window.misfit(record) {
                return Some(format!(
                    "{reason}; drop it with `ScaledOptimizerRecord::without_window`"
                ));
            }
        }
        if self.ema.is_some() && optim.options.ema.is_none() {
            let reason = "it holds averages of the weights, but none are kept here: use `with_ema`, or drop them with \
                          `ScaledOptimizerRecord::without_averages`";
            return Some(reason.to_string());
        }
        None
    }

    /// Whether an optimizer that keeps averages would lose its own, or start some late in a run of so many steps.
    pub(super) fn starts_averages_late<O>(&self, optim: &ScaledOptimizer<O>, steps: u64) -> bool {
        let here = optim.options.ema.as_ref().filter(|_| self.ema.is_none());
        here.is_some_and(|ema| ema.updates() > 0 || steps > 0)
    }

    /// Goes on from this state, which fits.
    pub(super) fn restore<O>(self, optim: &mut ScaledOptimizer<O>) {
        if let Some(window) = &mut optim.options.window {
            match self.window {
                Some(record) => window.restore(record),
                None => window.clear(),
            }
        }
        if let Some(ema) = &mut optim.options.ema {
            match self.ema {
                Some(record) => ema.load_record(record),
                None => ema.reset(),
            }
        }
    }
}
