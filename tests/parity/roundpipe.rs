//! RoundPipe's `GradScaler`, which is used from the training's thread and from the optimizer's: both scales after every iteration,
//! bit for bit.

use super::*;

fn compare(trace: &Value) {
    let config: GradScalerConfig = serde_json::from_value(trace["params"].clone()).unwrap();
    let config = config.with_max_consecutive_skips(None);
    let gradients = Arc::new(Mutex::new(Vec::<f32>::new()));
    let recorded = gradients.clone();
    let record = move |values| recorded.lock().unwrap().extend(values);
    let inner = Observed(SgdConfig::new().init(), record);
    let optim = ScaledOptimizer::new(inner, GradScaler::new(config).unwrap());
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let mut model = Param::from_tensor(Tensor::<1>::ones([1], &flex()).require_grad());
    let mut unscaled = Vec::new();
    for (t, iteration) in list(&trace["iterations"]).iter().enumerate() {
        for field in ["growth_interval", "growth_factor", "backoff_factor"] {
            if let Some(value) = iteration[format!("set_{field}")].as_f64() {
                let set = move |scaler: &mut Scaler| set_field(scaler, field, value);
                optim.queue(set).unwrap();
            }
        }
        if let Some(scale) = iteration["new_scale"].as_f64() {
            optim.set_loss_scale(scale).unwrap();
        }
        let used = optim.received_scaler().loss_scale();
        let mut grads = optim.backward(model.val(), &model);
        // Each is unscaled by the scale that it was scaled with.
        let unscale_scale = grads.loss_scale();
        if iteration["found_inf"] == 1 {
            let bad = Tensor::<1>::full([1], f32::INFINITY, &Device::flex());
            grads.params_mut().register(model.id, bad);
        }
        model = optim.step(0.0, model, grads);
        if iteration["is_async"] == false {
            model = optim.synchronize(model).unwrap();
        }
        let after = optim.received_scaler().loss_scale();
        let moved = optim.synchronized_scaler();
        let stepped = moved.last_outcome() == Some(StepOutcome::Stepped);
        for (found, column) in [
            (f64::from(used), "main_scale"),
            (unscale_scale.into(), "unscale_scale"),
            (after.into(), "main_scale_after_update"),
            (moved.growth_tracker().into(), "growth_tracker"),
            (moved.growth_interval().into(), "growth_interval_after"),
            (moved.loss_scale().into(), "next_scale"),
            (u8::from(stepped).into(), "optimizer_stepped"),
        ] {
            let (known, id) = (number(&trace[column][t]), &trace["id"]);
            assert_eq!(found, known, "{id}, {t}: {column}");
        }
        unscaled.extend(stepped.then(|| number(&trace["grad_after_unscale"][t]) as f32));
    }
    optim.synchronize(model).unwrap();
    assert_eq!(*gradients.lock().unwrap(), unscaled, "{}", trace["id"]);
}

#[test]
fn parity_roundpipe() {
    let traces = traces("roundpipe_gradscaler");
    assert!(!traces.is_empty());
    traces.iter().for_each(|(_, trace)| compare(trace));
}
