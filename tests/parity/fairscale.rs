//! FairScale's `LayerwiseGradientScaler`: a schedule for each region.
//!
//! Its `unscale` leaves out modules that had an overflow in the step before, so that the optimizer then steps with gradients that are still scaled.
//! That is nowhere here: `rescaled` takes factors back where gradients leave a region.

use super::*;

fn schedule(config: GradScalerConfig, init_scale: f64) -> LossScale {
    let bounds = (config.min_scale.unwrap(), config.max_scale.unwrap());
    let config = config.with_init_scale(init_scale);
    let config = config.with_min_scale(Some(bounds.0.min(init_scale)));
    let config = config.with_max_scale(Some(bounds.1.max(init_scale)));
    config.schedule().unwrap()
}

#[test]
fn parity_fairscale() {
    for (name, trace) in traces::<Value>("fairscale_layerwise") {
        let config: GradScalerConfig = serde_json::from_value(trace["params"].clone()).unwrap();
        let factors = [config.growth_factor, config.backoff_factor];
        // Bit for bit where factors are powers of two: our scales are f32, theirs f64.
        let is_exact = factors.iter().all(|factor| factor.log2().fract() == 0.0);
        let tolerance = if is_exact { 0.0 } else { 1e-5 };
        let modules = list(&trace["modules"]).iter().enumerate();
        for (module, path) in modules.filter(|(module, _)| trace["scale_layer"][module] == true) {
            let mut schedule = schedule(config, number(&trace["init_scale"][module]));
            for (step, scales) in list(&trace["scale"]).iter().enumerate() {
                let at = format!("{name}, {}, step {step}, {path}", trace["id"]);
                schedule = schedule.adjust(outcome(trace["found_inf"][step][module] == 1));
                let (ours, theirs) = (f64::from(schedule.scale()), number(&scales[module]));
                let error = (ours / theirs - 1.0).abs();
                assert!(error <= tolerance, "{at}: {ours}, {theirs}");
                let tracker = schedule.growth_tracker();
                assert_eq!(tracker, trace["growth_tracker"][step][module], "{at}");
            }
        }
    }
}
