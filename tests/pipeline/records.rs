//! Records: what is on its way is done first, and a run that resumes goes on bit for bit.

use crate::support::*;

fn amp() -> MixedPrecision {
    f16_under(growing(7))
}

/// By a rule that only this program knows.
fn amp_by_own_rule() -> MixedPrecision {
    let schedule = growing(7).schedule().unwrap();
    let schedule = schedule.with_rule(LogMaxAgain::default()).unwrap();
    MixedPrecision::f16().with_schedule(schedule).unwrap()
}

fn run(trial: &mut Trial, steps: Range<usize>) {
    for step in steps {
        trial.step(step, step % 13 == 5);
    }
}

fn synchronized(trial: &mut Trial, steps: Range<usize>) {
    run(trial, steps);
    trial.synchronize();
}

fn bytes(optim: &mut PipelinedOptimizer) -> Vec<u8> {
    optim.to_record().into_bytes().unwrap().to_vec()
}

/// An open window is in the record, and the pipeline knows how full it is.
#[test]
fn a_run_resumes_bit_for_bit_after_synchronize() {
    type Amp = fn() -> MixedPrecision;
    type Optim = fn(&MixedPrecision) -> ScaledOptimizer;
    let ways: [(Amp, Optim, u32); 3] = [
        (amp, adam, 0),
        (amp_by_own_rule, adam, 0),
        (amp, |amp| adam(amp).with_accumulation(4), 2),
    ];
    for (amp, optim, window) in ways {
        let folder = tempfile::tempdir().unwrap();
        let (file, model) = (folder.path().join("optim"), folder.path().join("model"));
        let mut there = Trial::new(amp(), optim);
        synchronized(&mut there, 0..22);
        there.optim.save(&file).unwrap();
        there.net.clone().into_record().save(&model).unwrap();
        let counters = there.counters();
        synchronized(&mut there, 22..45);

        // The model's own parameters are the masters.
        let record = AmpRecord::load(&file).unwrap();
        assert_eq!((record.masters(), record.window()), (0, window));

        let mut here = Trial::new(amp(), optim);
        here.optim.load(&file).unwrap();
        here.net = here.net.load_record(ModuleRecord::load(&model).unwrap());
        synchronized(&mut here, 22..45);
        assert!(here.state() == there.state());
        assert_eq!(here.counters(), there.counters());
        // Both have the same state.
        assert!(bytes(&mut here.optim) == bytes(&mut there.optim));

        // And so does a run without the pipeline.
        let mut optim = optim(&amp());
        optim.load(&file).unwrap();
        assert_eq!(optim.scaler().counters(), counters);
    }
}

/// Before any step of the run that resumes.
#[test]
fn a_window_of_a_record_is_flushed() {
    let optim = |amp: &MixedPrecision| adam(amp).with_accumulation(4);
    let [mut there, mut here] = [(); 2].map(|()| Trial::new(amp(), optim));
    run(&mut there, 0..2);
    here.optim.load_record(there.optim.to_record()).unwrap();
    here.net = here.net.load_record(there.net.clone().into_record());
    for trial in [&mut there, &mut here] {
        trial.net = trial.optim.flush(1e-2, trial.net.clone());
        trial.synchronize();
        assert_eq!(trial.counters().steps(), 1);
    }
    assert!(here.state() == there.state());
}

/// The record of a run whose model is behind has the masters: resuming with that model does not lose the last update.
#[test]
fn a_record_taken_without_synchronize_holds_what_the_model_lacks() {
    let mut there = Trial::new(amp(), adam);
    run(&mut there, 0..20);
    let record = there.optim.to_record().into_bytes().unwrap();
    let record = AmpRecord::from_bytes(record).unwrap();
    assert_eq!(record.masters(), 6);
    assert_eq!(record.counters().unwrap().steps(), 20);
    let model = there.net.clone().into_record();

    // It has changed nothing: the training goes on a step behind.
    let before = parameters(&there.net);
    there.synchronize();
    assert!(parameters(&there.net) != before);
    synchronized(&mut there, 20..30);

    let mut here = Trial::new(amp(), adam);
    here.optim.load_record(record.clone()).unwrap();
    here.net = here.net.load_record(model);
    assert!(parameters(&here.net) == before);
    here.synchronize();
    synchronized(&mut here, 20..30);
    assert!(parameters(&here.net) == parameters(&there.net));

    // Without a pipeline, it would be lost in silence.
    let mut optim = adam(&amp());
    let error = optim.load_record(record.clone()).unwrap_err();
    is_error(&error, "ForeignRecord", ["master"]);
    let without = record.clone().without_masters();
    optim.load_record(without).unwrap();
    assert_eq!(optim.scaler().counters().steps(), 20);

    // The masters of another model.
    let Trial { mut optim, net, .. } = Trial::new(amp(), adam);
    optim.load_record(record).unwrap();
    let error = optim.synchronize(net).unwrap_err();
    says(&error, ["load the model's own record"]);
    // They are there still.
    assert_eq!(optim.to_record().masters(), 6);
}

#[test]
fn a_damaged_record_leaves_all_as_it_was() {
    let mut trial = Trial::new(amp(), adam);
    run(&mut trial, 0..5);
    let before = bytes(&mut trial.optim);
    let mut damaged = before.clone();
    let last = damaged.len() - 3;
    damaged[last] ^= 1;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, damaged).unwrap();
    let scale = trial.amp.loss_scale();
    let error = trial.optim.load(&file).unwrap_err();
    is_error(&error, "DamagedRecord", []);
    let foreign = default_scaler().to_record();
    assert!(trial.optim.load_record(foreign).is_err());
    assert_eq!(trial.amp.loss_scale(), scale);
    assert!(bytes(&mut trial.optim) == before);
    synchronized(&mut trial, 5..8);
    assert_eq!(trial.counters().steps(), 8);
}
