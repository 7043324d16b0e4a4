//! To plain f32 training and back: our files are Burn's, and Burn's are ours.

use crate::support::*;

/// A plain step on unscaled gradients.
fn plain_step(optim: &mut ModuleOptimizer, small: Small, step: usize) -> Small {
    let grads = small.gradients(step, 1.0, false).into_params();
    optim.step(0.1, small, grads)
}

#[test]
fn burn_reads_our_file() {
    let (_folder, path) = place("optim.bpk");
    let mut scaled = adam();
    let small = Small::new(DType::F32).train(&mut scaled, 0..8, &[3]);
    scaled.save(&path).unwrap();

    let fresh = || AdamConfig::new().init();
    let loaded = [
        fresh().load_record(OptimizerRecord::load(&path).unwrap()),
        fresh().load(&path).unwrap(),
        fresh().from_bytes(scaled.into_bytes().unwrap()).unwrap(),
        fresh().load_record(scaled.to_record().into_optimizer().unwrap()),
    ];
    // All of them go on where the scaled one does, and save nothing of ours.
    let expected = small.clone().train(&mut scaled, 8..10, &[]);
    for mut plain in loaded {
        let stepped = plain_step(&mut plain, small.clone(), 8);
        let stepped = plain_step(&mut plain, stepped, 9);
        assert_eq!(parameters(&stepped), parameters(&expected));
        assert_eq!(state(&plain), state(scaled.optimizer()));
    }
    // An optimizer that had lost its state would have gone elsewhere.
    let lost = plain_step(&mut fresh(), small.clone(), 8);
    let kept = small.train(&mut scaled, 8..9, &[]);
    assert_ne!(parameters(&lost), parameters(&kept));
}

#[test]
fn we_read_burns_file() {
    let (_folder, path) = place("plain.bpk");
    let mut plain = AdamConfig::new().init();
    let mut small = Small::new(DType::F32);
    for step in 0..4 {
        small = plain_step(&mut plain, small, step);
    }
    plain.save(&path).unwrap();
    assert_eq!(AmpRecord::load(&path).unwrap().counters(), None);

    // A scaler far from its start, with settings of its own.
    let fresh = at_scale(1024.0).with_growth_interval(2).init().unwrap();
    let scaled = ScaledOptimizer::new(AdamConfig::new().init(), fresh.clone());
    let mut scaled = trained(scaled, DType::F32, 0..5, &[4]);
    assert_ne!(scaled.scaler().bits(), fresh.bits());

    let lines = logs(path.to_str().unwrap(), || scaled.load(&path).unwrap());
    let parts = ["WARN", "without loss scaling", "starts fresh", "1024"];
    says(only(&lines), parts);
    assert_eq!(scaled.scaler().bits(), fresh.bits());
    assert_eq!(scaled.scaler().last_outcome(), None);

    // And it goes on as the plain one does.
    let expected = plain_step(&mut plain, small.clone(), 4);
    let actual = small.train(&mut scaled, 4..5, &[]);
    assert_eq!(parameters(&actual), parameters(&expected));
    assert_eq!(state(scaled.optimizer()), state(&plain));
}
