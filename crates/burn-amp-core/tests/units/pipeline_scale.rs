//! The update rule of the scale in a pipeline, over random histories, without threads and tensors: N(t) is PyTorch's update of N(t-1), and iteration t + 2 is
//! computed with it.

use std::sync::Arc;

use crate::{
    scale::loss_scale::{Evidence, GradScalerConfig},
    scaler::GradScaler,
};

/// A generator of numbers that is the same everywhere: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// `torch._amp_update_scale_`, written down again.
fn torch(scale: f32, tracker: u32, overflow: bool, interval: u32) -> (f32, u32) {
    match (overflow, tracker + 1 == interval) {
        (true, _) => ((f64::from(scale) * 0.5) as f32, 0),
        (false, false) => (scale, tracker + 1),
        (false, true) => match (f64::from(scale) * 2.0) as f32 {
            grown if grown.is_finite() => (grown, 0),
            _ => (scale, 0),
        },
    }
}

#[test]
fn the_scale_follows_the_update_rule() {
    follows(10_000);
}

#[test]
#[ignore = "slow"]
fn sweep_the_scale_follows_the_update_rule() {
    follows(1_000_000);
}

fn follows(histories: u32) {
    let mut random = Random(42);
    for _ in 0..histories {
        let interval = 1 + random.below(4) as u32;
        let first = f32::from_bits((100 + random.below(154) as u32) << 23);
        let config = GradScalerConfig {
            init_scale: first.into(),
            growth_interval: interval,
            ..Default::default()
        };
        let mut training = GradScaler::new(config.schedule().unwrap());
        let mut optimizer = training.for_worker();
        let mut on_its_way = None;

        // What is to come out: N of the last update, its tracker, and that of the one before.
        let (mut reached, mut tracker, mut used) = (first, 0, first);
        for _ in 0..1 + random.below(10) {
            assert_eq!(training.loss_scale(), used);
            let overflow = random.below(3) == 0;
            let new_scale = (random.below(12) == 0).then(|| 2f64.powi(random.below(30) as i32));
            let synchronous = random.below(5) == 0;

            // `PipelinedOptimizer::step`: the update before is received, then this one is handed over.
            if let Some(update) = on_its_way.take() {
                training.follow(&update, true);
            }
            let before = optimizer.schedule();
            let seen = match overflow {
                true => Evidence::Overflow,
                false => Evidence::Finite(None),
            };
            let member = Arc::downgrade(&optimizer.ledger.member);
            optimizer.live().report(&member, Some(seen));
            if let Some(scale) = new_scale {
                optimizer.replace_update(before, scale).unwrap();
            }
            on_its_way = Some(optimizer.detached());
            if synchronous && let Some(update) = on_its_way.take() {
                training.follow(&update, true);
            }

            used = reached;
            match new_scale {
                Some(scale) => reached = scale as f32,
                None => (reached, tracker) = torch(reached, tracker, overflow, interval),
            }
            if synchronous {
                used = reached;
            }
            assert_eq!(optimizer.loss_scale(), reached);
            assert_eq!(optimizer.growth_tracker(), tracker);
        }
    }
}
