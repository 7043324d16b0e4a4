//! FairScale's `LayerwiseGradientScaler`: a schedule for each part.
//!
//! Its `unscale` leaves out modules that had an overflow in the step before, so that the optimizer then steps with gradients that are still scaled.
//! That is nowhere here: `rescaled` takes factors back where gradients leave a part.

use burn_amp_tests::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Trace {
    id: String,
    params: GradScalerConfig,
    modules: Vec<String>,
    init_scale: Vec<f64>,
    scale_layer: Vec<bool>,
    found_inf: Vec<Vec<u8>>,
    scale: Vec<Vec<f64>>,
    growth_tracker: Vec<Vec<u32>>,
}

impl Trace {
    fn schedule(&self, init_scale: f64) -> LossScale {
        let config = self.params.with_init_scale(init_scale);
        let bounds = (config.min_scale.unwrap(), config.max_scale.unwrap());
        let config = config.with_min_scale(Some(bounds.0.min(init_scale)));
        let config = config.with_max_scale(Some(bounds.1.max(init_scale)));
        config.schedule().unwrap()
    }

    /// Bit for bit where factors are powers of two: our scales are f32, theirs f64.
    fn tolerance(&self) -> f64 {
        let factors = [self.params.growth_factor, self.params.backoff_factor];
        let is_exact = factors.iter().all(|factor| factor.log2().fract() == 0.0);
        if is_exact { 0.0 } else { 1e-5 }
    }
}

#[test]
fn parity_fairscale() {
    for (name, trace) in &traces::<Trace>("fairscale_layerwise") {
        for (module, path) in trace.modules.iter().enumerate() {
            let mut schedule = trace.schedule(trace.init_scale[module]);
            let steps = (0..trace.scale.len()).filter(|_| trace.scale_layer[module]);
            for step in steps {
                let at = format!("{name}, {}, step {step}, {path}", trace.id);
                schedule = schedule.adjust(outcome(trace.found_inf[step][module] == 1));
                let (ours, theirs) = (f64::from(schedule.scale()), trace.scale[step][module]);
                let error = (ours / theirs - 1.0).abs();
                assert!(error <= trace.tolerance(), "{at}: {ours}, {theirs}");
                let tracker = schedule.growth_tracker();
                assert_eq!(tracker, trace.growth_tracker[step][module], "{at}");
            }
        }
    }
}
