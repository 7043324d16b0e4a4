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
    for _ in 0..2 {
        model = step(&model, &mut optim);
    }
    for _ in 0..2 {
        let before = optim.to_record().into_bytes().unwrap();
        let model_before = model.clone().into_record().into_bytes().unwrap();
        let (record, model_record) = (optim.to_record(), model.clone().into_record());
        for _ in 0..3 {
            model = step(&model, &mut optim);
        }
        assert!(optim.to_record().into_bytes().unwrap()[..] != before[..]);
        assert!(
            record.into_bytes().unwrap()[..] == before[..],
            "a later step is in the optimizer's checkpoint"
        );
        assert!(
            model_record.into_bytes().unwrap()[..] == model_before[..],
            "a later step is in the model's checkpoint"
        );
    }
}
