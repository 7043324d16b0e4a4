//! Records: what is on its way is done first, and a run that resumes goes on bit for bit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{LogMaxAgain, says};

use crate::support::{Net, gradients, parameters};

fn amp() -> MixedPrecision {
    MixedPrecision::f16().with_scaler(config()).unwrap()
}

fn config() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(7)
}

/// By a rule that only this program knows.
fn amp_by_own_rule() -> MixedPrecision {
    let schedule = config()
        .schedule()
        .unwrap()
        .with_rule(LogMaxAgain::default());
    MixedPrecision::f16()
        .with_schedule(schedule.unwrap())
        .unwrap()
}

fn pipelined(amp: &MixedPrecision) -> PipelinedOptimizer<ModuleOptimizer> {
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
    PipelinedOptimizer::new(optim, Device::flex()).unwrap()
}

fn run(
    amp: &MixedPrecision,
    optim: &mut PipelinedOptimizer,
    mut net: Net,
    steps: std::ops::Range<usize>,
) -> Net {
    for step in steps {
        let grads = gradients(amp, &net, step, step % 13 == 5);
        net = optim.step(1e-2, net, grads);
    }
    net
}

#[test]
fn a_run_resumes_bit_for_bit_after_synchronize() {
    resumes(amp);
    resumes(amp_by_own_rule);
}

fn resumes(amp: fn() -> MixedPrecision) {
    let folder = tempfile::tempdir().unwrap();
    let there = amp();
    let mut optim = pipelined(&there);
    let start = Net::new(&there);
    let net = run(&there, &mut optim, start.clone(), 0..20);
    let net = optim.synchronize(net).unwrap();
    optim.save(folder.path().join("optim")).unwrap();
    net.clone()
        .into_record()
        .save(folder.path().join("model"))
        .unwrap();
    let net = run(&there, &mut optim, net, 20..40);
    let net = optim.synchronize(net).unwrap();

    // The model's own parameters are the masters.
    let record = AmpRecord::load(folder.path().join("optim")).unwrap();
    assert_eq!(record.masters(), 0);

    let here = amp();
    let mut resumed = pipelined(&here);
    resumed.load(folder.path().join("optim")).unwrap();
    let record = ModuleRecord::load(folder.path().join("model")).unwrap();
    let other = Net::new(&here).load_record(record);
    let other = run(&here, &mut resumed, other, 20..40);
    let other = resumed.synchronize(other).unwrap();
    assert!(parameters(&other) == parameters(&net));
    assert_eq!(here.loss_scale(), there.loss_scale());
    assert_eq!(
        resumed.scaler(true).counters(),
        optim.scaler(true).counters()
    );
    // Both have the same state.
    let bytes = |optim: &mut PipelinedOptimizer| optim.to_record().into_bytes().unwrap().to_vec();
    assert!(bytes(&mut resumed) == bytes(&mut optim));

    // And so does a run without the pipeline.
    let plain = amp();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &plain);
    optim.load(folder.path().join("optim")).unwrap();
    assert_eq!(optim.scaler().counters().steps(), 20);
}

/// The record of a run whose model is behind has the masters: resuming with that model does not lose the last update.
#[test]
fn a_record_taken_without_synchronize_holds_what_the_model_lacks() {
    let there = amp();
    let mut optim = pipelined(&there);
    let start = Net::new(&there);
    let net = run(&there, &mut optim, start.clone(), 0..20);
    let record = optim.to_record();
    assert_eq!(record.masters(), 4);
    assert_eq!(record.counters().unwrap().steps(), 20);
    let stored = record.into_bytes().unwrap();
    let model = net.clone().into_record();

    // It has changed nothing: the training goes on a step behind.
    let before = parameters(&net);
    let net = optim.synchronize(net).unwrap();
    assert!(parameters(&net) != before);
    let net = run(&there, &mut optim, net, 20..30);
    let net = optim.synchronize(net).unwrap();

    let here = amp();
    let mut resumed = pipelined(&here);
    resumed
        .load_record(AmpRecord::from_bytes(stored.clone()).unwrap())
        .unwrap();
    let other = Net::new(&here).load_record(model);
    assert!(parameters(&other) == before);
    let other = resumed.synchronize(other).unwrap();
    let other = run(&here, &mut resumed, other, 20..30);
    let other = resumed.synchronize(other).unwrap();
    assert!(parameters(&other) == parameters(&net));

    // Without a pipeline, it would be lost in silence.
    let plain = amp();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &plain);
    let error = optim.from_bytes(stored.clone()).unwrap_err();
    assert!(
        matches!(&error, AmpError::ForeignRecord { reason, .. } if reason.contains("master")),
        "{error}"
    );
    let record = AmpRecord::from_bytes(stored.clone()).unwrap();
    optim.load_record(record.without_masters()).unwrap();
    assert_eq!(optim.scaler().counters().steps(), 20);

    // The masters of another model.
    let mut resumed = pipelined(&amp());
    resumed
        .load_record(AmpRecord::from_bytes(stored).unwrap())
        .unwrap();
    let other = Net::new(&here);
    let error = resumed.synchronize(other).unwrap_err();
    says(&error, ["load the model's own record"]);
    // They are there still.
    assert_eq!(resumed.to_record().masters(), 4);
}

/// A half-precision model has fewer digits than its masters: the record has them always.
#[test]
fn masters_of_a_half_precision_model_are_stored() {
    let device = Device::flex().autodiff();
    let start = to_half(LinearConfig::new(4, 3).init(&device), FloatDType::BF16, &[]);
    let optim = || PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
    let inputs: Vec<Tensor<2>> = (0..20)
        .map(|_| Tensor::<2>::random([2, 4], Distribution::Default, &device).cast(FloatDType::BF16))
        .collect();
    let train = |optim: &mut PipelinedOptimizer,
                 mut model: burn::nn::Linear,
                 steps: std::ops::Range<usize>| {
        for input in &inputs[steps] {
            let loss = model
                .forward(input.clone())
                .cast(FloatDType::F32)
                .square()
                .mean();
            let grads = optim.backward(loss, &model);
            model = optim.step(1e-4, model, grads);
        }
        optim.synchronize(model).unwrap()
    };
    let mut first = optim();
    let model = train(&mut first, start.clone(), 0..10);
    let stored = first.to_record();
    assert_eq!(stored.masters(), 2);
    let stored = stored.into_bytes().unwrap();
    let expected = train(&mut first, model.clone(), 10..20);

    let mut second = optim();
    second
        .load_record(AmpRecord::from_bytes(stored).unwrap())
        .unwrap();
    let resumed = train(&mut second, model, 10..20);
    assert!(parameters(&resumed) == parameters(&expected));
    let bytes = |optim: &mut PipelinedOptimizer| optim.to_record().into_bytes().unwrap().to_vec();
    assert!(bytes(&mut second) == bytes(&mut first));
}

/// An open window is in the record, and the pipeline knows how full it is.
#[test]
fn an_open_window_is_stored() {
    let accumulating = |amp: &MixedPrecision| {
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
        let optim = optim.with_accumulation(4).unwrap();
        PipelinedOptimizer::new(optim, Device::flex()).unwrap()
    };
    let there = amp();
    let mut optim = accumulating(&there);
    let start = Net::new(&there);
    let net = run(&there, &mut optim, start, 0..10);
    let net = optim.synchronize(net).unwrap();
    let record = optim.to_record();
    assert_eq!(record.window(), 2);
    let stored = record.into_bytes().unwrap();
    let model = net.clone().into_record();
    let net = run(&there, &mut optim, net, 10..21);
    let net = optim.synchronize(net).unwrap();

    let here = amp();
    let mut resumed = accumulating(&here);
    resumed
        .load_record(AmpRecord::from_bytes(stored).unwrap())
        .unwrap();
    let other = Net::new(&here).load_record(model);
    let other = run(&here, &mut resumed, other, 10..21);
    let other = resumed.synchronize(other).unwrap();
    assert!(parameters(&other) == parameters(&net));
    assert_eq!(resumed.scaler(true).counters().steps(), 5);
}

#[test]
fn a_damaged_record_leaves_all_as_it_was() {
    let there = amp();
    let mut optim = pipelined(&there);
    let net = run(&there, &mut optim, Net::new(&there), 0..5);
    let before = optim.to_record().into_bytes().unwrap().to_vec();
    let mut damaged = before.clone();
    let last = damaged.len() - 3;
    damaged[last] ^= 1;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("optim.bpk");
    std::fs::write(&file, damaged).unwrap();
    let error = optim.load(&file).unwrap_err();
    assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
    let scaler = there.loss_scale();
    assert!(
        optim
            .load_record(GradScalerConfig::new().init().unwrap().to_record())
            .is_err()
    );
    assert_eq!(there.loss_scale(), scaler);
    assert!(optim.to_record().into_bytes().unwrap().to_vec() == before);
    let net = run(&there, &mut optim, net, 5..8);
    optim.synchronize(net).unwrap();
    assert_eq!(optim.scaler(true).counters().steps(), 8);
}
