use burn::train::metric::{
    MetricAttributes, MetricMetadata, MetricName, NumericAttributes, NumericEntry, SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};
use std::sync::Arc;

use super::follow::{Follow, in_validation};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// What the metrics share that average a value over the steps of an epoch.
#[derive(Clone)]
pub(super) struct Averaged {
    name: MetricName,
    unit: Option<&'static str>,
    follow: Follow,
    state: NumericMetricState,
    /// Whether there is a value, and a mean, to be shown.
    known: (bool, bool),
}

impl Averaged {
    pub(super) fn new(monitor: &ScalerMonitor, name: &str, unit: Option<&'static str>) -> Self {
        Self {
            name: Arc::new(name.to_string()),
            unit,
            follow: Follow::new(monitor),
            state: NumericMetricState::new(),
            known: (false, false),
        }
    }

    pub(super) fn name(&self) -> MetricName {
        self.name.clone()
    }

    pub(super) fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: self.unit.map(str::to_string),
            higher_is_better: false,
        }
        .into()
    }

    /// Takes the value of the next step; none leaves the step out of the mean.
    pub(super) fn update(
        &mut self,
        metadata: &MetricMetadata,
        value: impl FnOnce(&ScalerReading) -> Option<f64>,
    ) -> SerializedEntry {
        let reading = match in_validation(metadata) {
            true => None,
            false => self.follow.next(),
        };
        let value = reading.as_ref().and_then(value);
        self.known.0 = value.is_some();
        if let Some(value) = value {
            self.known.1 = true;
            self.state.update(value, 1);
        }
        match value {
            Some(_) => self.state.compute_update(self.format()),
            None => SerializedEntry::not_available(self.unit),
        }
    }

    pub(super) fn compute(&self) -> SerializedEntry {
        match self.known.1 {
            true => self.state.compute_final(self.format()),
            false => SerializedEntry::not_available(self.unit),
        }
    }

    pub(super) fn clear(&mut self) {
        self.state.reset();
        self.known = (false, false);
    }

    pub(super) fn value(&self) -> Option<NumericEntry> {
        self.known.0.then(|| self.state.current_value())
    }

    pub(super) fn running_value(&self) -> Option<NumericEntry> {
        self.known.1.then(|| self.state.running_value())
    }

    pub(super) fn final_value(&self) -> NumericEntry {
        match self.known.1 {
            true => self.state.final_value(),
            // Burn wants a number, and the mean of nothing is none.
            false => NumericEntry::Final(0.0),
        }
    }

    fn format(&self) -> FormatOptions {
        let format = FormatOptions::new(self.name()).precision(3);
        match self.unit {
            Some(unit) => format.unit(unit),
            None => format,
        }
    }
}

/// `Metric` and `Numeric` for a struct with a field `averaged` and a function `value` of the reading.
macro_rules! averaged_metric {
    ($metric:ident, $description:literal) => {
        impl burn::train::metric::Metric for $metric {
            type Input = ();

            fn name(&self) -> burn::train::metric::MetricName {
                self.averaged.name()
            }

            fn description(&self) -> Option<String> {
                Some($description.to_string())
            }

            fn attributes(&self) -> burn::train::metric::MetricAttributes {
                self.averaged.attributes()
            }

            fn update(
                &mut self,
                _: &(),
                metadata: &burn::train::metric::MetricMetadata,
            ) -> Result<burn::train::metric::SerializedEntry, burn::tensor::TensorReadError> {
                Ok(self.averaged.update(metadata, Self::value_of))
            }

            fn compute(
                &mut self,
            ) -> Result<burn::train::metric::SerializedEntry, burn::tensor::TensorReadError> {
                Ok(self.averaged.compute())
            }

            fn clear(&mut self) {
                self.averaged.clear();
            }
        }

        impl burn::train::metric::Numeric for $metric {
            fn value(&self) -> Option<burn::train::metric::NumericEntry> {
                self.averaged.value()
            }

            fn running_value(&self) -> Option<burn::train::metric::NumericEntry> {
                self.averaged.running_value()
            }

            fn final_value(&self) -> burn::train::metric::NumericEntry {
                self.averaged.final_value()
            }
        }
    };
}

pub(super) use averaged_metric;
