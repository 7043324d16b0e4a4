//! What a step in a Learner launches on a CubeCL device, where every launch can be heard of.
//!
//! The observer hears of every launch of the process: one test at a time (`--test-threads 1`).

use burn::{optim::AdamConfig, tensor::Device};
use burn_amp::FusedAdam;
use cubecl::logging::{LaunchObservation, LaunchObserver};
use std::sync::{Arc, Mutex};

use crate::support::{Net, Run, loader, lr, samples};

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
    let device = Device::default();
    if device == Device::flex() {
        return;
    }
    let (amp, training) = (Run::default().amp(), device.clone().autodiff());
    let optim = FusedAdam::new(AdamConfig::new()).unwrap();
    let learner = amp.learner(Net::new(&training), optim, lr());
    let mut learner = learner.unwrap();
    learner.fork(&training);
    for batch in loader(samples(24), None).to_device(&training).iter() {
        let grads = learner.train_step(batch.unwrap()).grads;
        device.sync().unwrap();
        learner.lr_step();
        let launches = Arc::new(Launches::default());
        let watching = LaunchObservation::new(launches.clone());
        learner.optimizer_step(grads);
        device.sync().unwrap();
        drop(watching);
        let seen = launches.0.lock().unwrap();
        let updates = seen.iter().filter(|name| name.contains("update_many"));
        assert_eq!(updates.count(), 1, "{seen:?}");
        println!("{seen:?}");
    }
}
