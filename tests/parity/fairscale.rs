//! FairScale's `LayerwiseGradientScaler`: a schedule for each part.
//!
//! Its `unscale` leaves out modules that had an overflow in the step before, so that the optimizer then steps with gradients that are still scaled. That
//! is in these tests, and nowhere else: `rescaled` takes factors back where gradients leave a part.

use burn_amp_tests::prelude::*;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Trace {
    id: String,
    params: GradScalerConfig,
    modules: Vec<String>,
    leaves: Vec<String>,
    init_scale: Vec<f64>,
    scale_layer: Vec<bool>,
    overflow_leaf: Vec<Vec<u8>>,
    found_inf: Vec<Vec<u8>>,
    optimizer_stepped: Vec<u8>,
    scale: Vec<Vec<f64>>,
    growth_tracker: Vec<Vec<u32>>,
    grad_after_unscale_of_1: Vec<Vec<Value>>,
}

impl Trace {
    fn schedules(&self) -> Vec<LossScale> {
        let schedule = |init_scale: &f64| {
            let config = self.params.with_init_scale(*init_scale);
            let bounds = (config.min_scale.unwrap(), config.max_scale.unwrap());
            let config = config.with_min_scale(Some(bounds.0.min(*init_scale)));
            let config = config.with_max_scale(Some(bounds.1.max(*init_scale)));
            config.schedule().unwrap()
        };
        self.init_scale.iter().map(schedule).collect()
    }

    /// Whether a leaf is in a module, or is it.
    fn holds(&self, module: usize, leaf: usize) -> bool {
        let (module, leaf) = (&self.modules[module], &self.leaves[leaf]);
        module == leaf || leaf.starts_with(&format!("{module}."))
    }

    fn overflows(&self, step: usize, module: usize) -> bool {
        let mut leaves = self.overflow_leaf[step].iter().enumerate();
        leaves.any(|(leaf, overflow)| *overflow == 1 && self.holds(module, leaf))
    }

    /// Bit for bit where factors are powers of two: our scales are f32, theirs f64.
    fn is_exact(&self) -> bool {
        let is_power = |factor: f64| factor.log2().fract() == 0.0;
        is_power(self.params.growth_factor) && is_power(self.params.backoff_factor)
    }
}

/// Its gradients follow from the flags of the step before. With those of the present one, each is unscaled once, always.
#[test]
fn parity_fairscale() {
    let (mut wrong, mut all) = (0, 0u32);
    for (name, trace) in &traces::<Trace>("fairscale_layerwise") {
        let mut schedules = trace.schedules();
        let mut found = &vec![0; trace.modules.len()];
        let mut scales = &trace.init_scale;
        for step in 0..trace.scale.len() {
            let place = format!("{name}, {}, step {step}", trace.id);
            let stepped = trace.optimizer_stepped[step];
            for (leaf, grad) in trace.grad_after_unscale_of_1[step].iter().enumerate() {
                // Infinities were planted.
                let planted = trace.overflow_leaf[step][leaf] == 1;
                let (mut expected, mut once) = (if planted { f32::INFINITY } else { 1.0 }, 1.0);
                for module in (0..trace.modules.len()).filter(|module| trace.holds(*module, leaf)) {
                    once *= scales[module];
                    if found[module] == 0 {
                        expected *= (1.0 / scales[module]) as f32;
                    }
                }
                assert_eq!(number(grad) as f32, expected, "{place}, leaf {leaf}");
                all += u32::from(stepped);
                wrong += u32::from(stepped == 1 && expected != (1.0 / once) as f32);
            }

            for (module, schedule) in schedules.iter_mut().enumerate() {
                let at = format!("{place}, {}", trace.modules[module]);
                let overflow = trace.overflows(step, module);
                assert_eq!(u8::from(overflow), trace.found_inf[step][module], "{at}");
                if !trace.scale_layer[module] {
                    continue;
                }
                *schedule = schedule.clone().adjust(outcome(overflow));
                let (ours, theirs) = (f64::from(schedule.scale()), trace.scale[step][module]);
                let tolerance = if trace.is_exact() { 0.0 } else { 1e-5 };
                let error = (ours / theirs - 1.0).abs();
                assert!(error <= tolerance, "{at}: {ours}, {theirs}");
                let tracker = schedule.growth_tracker();
                assert_eq!(tracker, trace.growth_tracker[step][module], "{at}");
            }
            (found, scales) = (&trace.found_inf[step], &trace.scale[step]);
            // An overflow in any part skips the step of all.
            assert_eq!(u8::from(!found.contains(&1)), stepped, "{place}");
        }
    }
    // In which the optimizer got gradients that were not unscaled.
    assert!(wrong > 0 && wrong < all);
}
