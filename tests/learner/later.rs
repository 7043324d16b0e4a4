//! Checkpoints that are written while the training goes on.

use crate::support::*;

/// Burn writes checkpoints on a thread of its own. On CubeCL devices their values are read there, and a step in place would show
/// in them.
#[test]
fn a_checkpoint_is_that_of_its_step() {
    let amp = Run::default().amp();
    let mut optim: ModuleOptimizer = AdamConfig::new().init();
    let ema = EmaConfig::new().with_momentum(0.5);
    let scaled = ScaledOptimizer::new(optim.clone(), &amp).with_ema(ema);
    let learner = amp.learner(net(), scaled, lr()).unwrap();
    let mut model = learner.model();
    let batch = batches(&samples(8)).remove(0);
    let step = |model: &_, optim: &mut ModuleOptimizer| {
        let grads = TrainStep::step(model, batch.clone()).grads;
        // As Burn's Learner, which keeps the model meanwhile.
        TrainStep::optimize(Scaled::clone(model), optim, lr().step(), grads)
    };
    let records = |model: &Scaled<Net>, optim: &ModuleOptimizer| {
        let (optim, model) = (optim.to_record(), model.clone().into_record());
        move || [optim.into_bytes().unwrap(), model.into_bytes().unwrap()]
    };
    for steps in [2, 3, 3] {
        let before = records(&model, &optim)();
        let read_later = records(&model, &optim);
        for _ in 0..steps {
            model = step(&model, &mut optim);
        }
        assert!(records(&model, &optim)() != before);
        // No later step is in the checkpoint.
        assert!(read_later() == before);
    }
}
