//! What a step in a Learner launches on a CubeCL device, where every launch can be observed.
//!
//! The observer sees every launch of the process: one test at a time (`--test-threads 1`).

use cubecl::logging::{LaunchObservation, LaunchObserver};
use std::sync::{Arc, Mutex};

use crate::support::*;

#[derive(Default)]
struct Launches(Mutex<Vec<&'static str>>);

impl LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap().push(kernel);
    }
}

/// Four parameters, one update.
#[test]
fn a_fused_step_is_one_update() {
    if Device::default() == Device::flex() {
        return;
    }
    let amp = Run::default().amp();
    let mut learner = amp.learner(net(), fused(), lr()).unwrap();
    learner.fork(&device());
    for batch in batches(&samples(24)) {
        let grads = learner.train_step(batch).grads;
        Device::default().sync().unwrap();
        learner.lr_step();
        let launches = Arc::new(Launches::default());
        let watching = LaunchObservation::new(launches.clone());
        learner.optimizer_step(grads);
        Device::default().sync().unwrap();
        drop(watching);
        let seen = launches.0.lock().unwrap();
        let updates = seen.iter().filter(|name| name.contains("update_many"));
        assert_eq!(updates.count(), 1, "{seen:?}");
        println!("{seen:?}");
    }
}
