//! RoundPipe's `GradScaler`, which is used from the training's thread and from the optimizer's: both scales after every iteration,
//! bit for bit.

use burn_amp_tests::prelude::*;

fn compare(trace: &Value) {
    let id = &trace["id"];
    let config: GradScalerConfig = serde_json::from_value(trace["params"].clone()).unwrap();
    let config = config.with_max_consecutive_skips(None);
    let gradients = Arc::new(Mutex::new(Vec::<f32>::new()));
    let recorded = gradients.clone();
    let record = move |values| recorded.lock().unwrap().extend(values);
    let inner = Observed(SgdConfig::new().init(), record);
    let optim = ScaledOptimizer::new(inner, config.init().unwrap());
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let device = Device::flex().autodiff();
    let mut model = Param::from_tensor(Tensor::<1>::ones([1], &device).require_grad());
    let mut unscaled = Vec::new();
    for (t, iteration) in trace["iterations"].as_array().unwrap().iter().enumerate() {
        for field in ["growth_interval", "growth_factor", "backoff_factor"] {
            if let Some(value) = iteration[format!("set_{field}")].as_f64() {
                let set = move |scaler: &mut GradScaler| set_field(scaler, field, value);
                optim.queue(set).unwrap();
            }
        }
        if let Some(scale) = iteration["new_scale"].as_f64() {
            optim.set_loss_scale(scale).unwrap();
        }

        let used = f64::from(optim.received_scaler().loss_scale());
        assert_eq!(used, trace["main_scale"][t], "{id}, {t}");
        let mut grads = optim.backward(model.val(), &model);
        // Each is unscaled by the scale that it was scaled with.
        let unscale_scale = f64::from(grads.loss_scale());
        assert_eq!(unscale_scale, trace["unscale_scale"][t], "{id}, {t}");
        if iteration["found_inf"] == 1 {
            let bad = Tensor::<1>::full([1], f32::INFINITY, &Device::flex());
            grads.params_mut().register(model.id, bad);
        }
        model = optim.step(0.0, model, grads);
        if iteration["is_async"] == false {
            model = optim.synchronize(model).unwrap();
        }
        let after = f64::from(optim.received_scaler().loss_scale());
        let expected = &trace["main_scale_after_update"][t];
        assert_eq!(after, *expected, "{id}, {t}");

        let moved = optim.synchronized_scaler();
        let (tracker, interval) = (moved.growth_tracker(), moved.growth_interval());
        assert_eq!(tracker, trace["growth_tracker"][t], "{id}, {t}");
        assert_eq!(interval, trace["growth_interval_after"][t], "{id}, {t}");
        let scale = f64::from(moved.loss_scale());
        assert_eq!(scale, trace["next_scale"][t], "{id}, {t}");
        let stepped = u8::from(moved.last_outcome() == Some(StepOutcome::Stepped));
        assert_eq!(stepped, trace["optimizer_stepped"][t], "{id}, {t}");
        if stepped == 1 {
            unscaled.push(trace["grad_after_unscale"][t].clone());
        }
    }
    optim.synchronize(model).unwrap();
    let stepped_with = gradients.lock().unwrap();
    let stepped_with: Vec<_> = stepped_with.iter().map(|grad| f64::from(*grad)).collect();
    assert_eq!(stepped_with, unscaled, "{id}");
}

#[test]
fn parity_roundpipe() {
    let traces = traces("roundpipe_gradscaler");
    assert!(!traces.is_empty());
    traces.iter().for_each(|(_, trace)| compare(trace));
}
