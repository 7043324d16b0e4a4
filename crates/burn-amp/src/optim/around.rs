//! What a record holds of an open accumulation window and of averages, beside the optimizer's state.

use burn::tensor::TensorData;
use burn_pack::Tensor;

use super::ScaledOptimizer;
use crate::{
    ema::EmaState, error::AmpError, gradients::WindowState, param_tensors::ParamTensors,
    record::Container,
};

const WINDOW_KEY: &str = "burn_amp.window";
const EMA_KEY: &str = "burn_amp.ema";
/// Tensors are named after their parameter, `{id}.burn_amp.sum`, as the optimizer's own are: its readers pass over them.
const SUM: &str = ".burn_amp.sum";
const AVERAGE: &str = ".burn_amp.average";

/// An open window and averages, as they are stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    pub(super) window: Option<(WindowState, ParamTensors)>,
    pub(super) ema: Option<(EmaState, ParamTensors)>,
}

impl Around {
    /// The state of an optimizer. Waits for the device.
    pub(super) fn of<O>(optim: &ScaledOptimizer<O>) -> Self {
        let window = optim
            .options
            .window
            .as_ref()
            .filter(|window| !window.is_empty());
        let ema = optim.options.ema.as_ref().filter(|ema| ema.updates() > 0);
        Self {
            window: window.map(|window| (window.state(), window.sums().clone())),
            ema: ema.map(|ema| (ema.state(), ema.averages().clone())),
        }
    }

    /// Puts the state beside the optimizer's. Waits for the device.
    pub(super) fn write(&self, container: &mut Container) {
        if let Some((state, sums)) = &self.window {
            container.set_state(WINDOW_KEY, state);
            container.extend(pack(sums, SUM));
        }
        if let Some((state, averages)) = &self.ema {
            container.set_state(EMA_KEY, state);
            container.extend(pack(averages, AVERAGE));
        }
    }

    /// Takes the state out of a container, which is the optimizer's alone then.
    pub(super) fn take(container: &mut Container) -> Result<Self, AmpError> {
        let damaged = |container: &Container, reason: String| AmpError::DamagedRecord {
            origin: container.origin().to_string(),
            reason,
        };
        let sums = container.split_tensors(|name| name.ends_with(SUM));
        let averages = container.split_tensors(|name| name.ends_with(AVERAGE));
        let window: Option<WindowState> = container.take_state(WINDOW_KEY)?;
        let ema = container.take_state(EMA_KEY)?;
        if (window.is_none() && !sums.is_empty()) || (ema.is_none() && !averages.is_empty()) {
            let reason = "it holds sums or averages without their state";
            return Err(damaged(container, reason.to_string()));
        }
        if let Some(WindowState {
            scale: Some(scale), ..
        }) = &window
            && !(scale.is_finite() && *scale > 0.0)
        {
            let reason = format!("the loss scale of its window is {scale}");
            return Err(damaged(container, reason));
        }
        let sums = unpack(sums).map_err(|reason| damaged(container, reason))?;
        let averages = unpack(averages).map_err(|reason| damaged(container, reason))?;
        Ok(Self {
            window: window.map(|state| (state, sums)),
            ema: ema.map(|state| (state, averages)),
        })
    }

    /// Why an optimizer cannot go on with this state, if it cannot.
    pub(super) fn misfit<O>(&self, optim: &ScaledOptimizer<O>) -> Option<String> {
        if let Some((state, _)) = self.window.as_ref().filter(|(state, _)| state.len > 0) {
            let Some(window) = &optim.options.window else {
                return Some(format!(
                    "it holds a window of {} accumulated micro-batches, but there is no accumulation here: use \
                     `with_accumulation`, or drop them with `ScaledOptimizerRecord::without_window`",
                    state.len
                ));
            };
            if let Some(reason) = window.misfit(state) {
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

    /// Goes on from this state, which fits.
    pub(super) fn restore<O>(self, optim: &mut ScaledOptimizer<O>) {
        if let Some(window) = &mut optim.options.window {
            window.clear();
            if let Some((state, sums)) = self.window {
                window.restore(&state, sums);
            }
        }
        if let Some(ema) = &mut optim.options.ema {
            ema.reset();
            if let Some((state, averages)) = self.ema {
                ema.restore(&state, averages);
            }
        }
    }
}

fn pack(tensors: &ParamTensors, field: &str) -> Vec<Tensor> {
    let pack = |(id, data): (burn::module::ParamId, TensorData)| {
        let name = format!("{}{field}", id.val());
        let (bytes, shape, dtype) = data.into_parts();
        Tensor::new(name, dtype, shape, Some(id.val()), bytes)
    };
    tensors.to_data().into_iter().map(pack).collect()
}

fn unpack(tensors: Vec<Tensor>) -> Result<ParamTensors, String> {
    let mut all = ParamTensors::default();
    for tensor in tensors {
        let name = tensor.name.clone();
        let (_, dtype, shape, id, bytes) = tensor.into_parts().map_err(|e| e.to_string())?;
        let id = id.ok_or_else(|| format!("tensor `{name}` belongs to no parameter"))?;
        all.store(id.into(), TensorData::from_bytes(bytes, shape, dtype));
    }
    Ok(all)
}
