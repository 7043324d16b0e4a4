//! RoundPipe's `GradScaler`, which is used from the training's thread and from the optimizer's: both scales after every iteration,
//! bit for bit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::traces;
use serde::Deserialize;
use std::sync::{Arc, Mutex};

#[derive(Deserialize)]
struct Trace {
    id: String,
    params: GradScalerConfig,
    iterations: Vec<Iteration>,
    main_scale: Vec<f64>,
    unscale_scale: Vec<f64>,
    optimizer_stepped: Vec<u8>,
    grad_after_unscale: Vec<serde_json::Value>,
    main_scale_after_update: Vec<f64>,
    growth_tracker: Vec<u32>,
    next_scale: Vec<f64>,
    growth_interval_after: Vec<u32>,
}

#[derive(Deserialize)]
struct Iteration {
    found_inf: u8,
    is_async: bool,
    new_scale: Option<f64>,
    set_growth_interval: Option<u32>,
    set_growth_factor: Option<f64>,
    set_backoff_factor: Option<f64>,
}

/// Notes the gradients that it steps with.
struct Noting {
    inner: ModuleOptimizer,
    gradients: Arc<Mutex<Vec<f32>>>,
}

impl ModuleOptim for Noting {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        struct Note<'a>(&'a GradientsParams, Vec<f32>);

        impl burn::module::ModuleVisitor for Note<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let grad = self.0.get::<D>(param.id).unwrap();
                self.1.extend(grad.to_data().iter::<f32>());
            }
        }

        let mut note = Note(&grads, Vec::new());
        module.visit(&mut note);
        self.gradients.lock().unwrap().extend(note.1);
        self.inner.step(lr, module, grads)
    }
}

fn bits(scale: f64) -> u32 {
    assert_eq!(f64::from(scale as f32), scale, "the traces are f32");
    (scale as f32).to_bits()
}

fn compare(trace: &Trace) {
    let id = &trace.id;
    let config = trace.params.with_max_consecutive_skips(None);
    let gradients = Arc::new(Mutex::new(Vec::new()));
    let inner = Noting {
        inner: SgdConfig::new().init(),
        gradients: gradients.clone(),
    };
    let optim = ScaledOptimizer::new(inner, config.init().unwrap());
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let device = Device::flex().autodiff();
    let mut model = Param::from_tensor(Tensor::<1>::ones([1], &device).require_grad());
    let mut unscaled = Vec::new();
    for (t, iteration) in trace.iterations.iter().enumerate() {
        if let Some(interval) = iteration.set_growth_interval {
            let set = move |scaler: &mut GradScaler| scaler.set_growth_interval(interval);
            optim.queue(set).unwrap();
        }
        if let Some(factor) = iteration.set_growth_factor {
            let set = move |scaler: &mut GradScaler| scaler.set_growth_factor(factor);
            optim.queue(set).unwrap();
        }
        if let Some(factor) = iteration.set_backoff_factor {
            let set = move |scaler: &mut GradScaler| scaler.set_backoff_factor(factor);
            optim.queue(set).unwrap();
        }
        if let Some(scale) = iteration.new_scale {
            optim.set_loss_scale(scale).unwrap();
        }

        let used = optim.scaler(false).loss_scale();
        assert_eq!(used.to_bits(), bits(trace.main_scale[t]), "{id}, {t}");
        let mut grads = optim.backward(model.val(), &model);
        // Each is unscaled by the scale that it was scaled with.
        let unscale_scale = bits(trace.unscale_scale[t]);
        assert_eq!(grads.loss_scale().to_bits(), unscale_scale, "{id}, {t}");
        if iteration.found_inf == 1 {
            let bad = Tensor::<1>::full([1], f32::INFINITY, &Device::flex());
            grads.params_mut().register(model.id, bad);
        }
        model = optim.step(0.0, model, grads);
        if !iteration.is_async {
            model = optim.synchronize(model).unwrap();
        }
        let after = optim.scaler(false).loss_scale().to_bits();
        assert_eq!(after, bits(trace.main_scale_after_update[t]), "{id}, {t}");

        let learned = optim.scaler(true);
        let found = (learned.growth_tracker(), learned.growth_interval());
        let expected = (trace.growth_tracker[t], trace.growth_interval_after[t]);
        assert_eq!(found, expected, "{id}, {t}");
        let scale = learned.loss_scale().to_bits();
        assert_eq!(scale, bits(trace.next_scale[t]), "{id}, {t}");
        let stepped = learned.last_outcome() == Some(StepOutcome::Stepped);
        assert_eq!(u8::from(stepped), trace.optimizer_stepped[t], "{id}, {t}");
        if stepped {
            let grad = trace.grad_after_unscale[t].as_f64().unwrap();
            unscaled.push(bits(grad));
        }
    }
    optim.synchronize(model).unwrap();
    let stepped_with = gradients.lock().unwrap();
    let stepped_with: Vec<_> = stepped_with.iter().map(|grad| grad.to_bits()).collect();
    assert_eq!(stepped_with, unscaled, "{id}");
}

#[test]
fn parity_roundpipe() {
    let traces = traces("roundpipe_gradscaler");
    assert!(!traces.is_empty());
    traces.iter().for_each(|(_, trace)| compare(trace));
}
