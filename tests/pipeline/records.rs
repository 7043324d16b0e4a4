//! Records: what is on its way is done first, and a run that resumes goes on bit for bit. Those of windows, hooks and several loads, `tests/oracle`
//! draws.

use crate::support::*;

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

/// The record of a run whose model is behind has the masters: resuming with that model does not lose the last update.
#[test]
fn a_record_taken_without_synchronize_holds_what_the_model_lacks() {
    let [mut there, mut here] = [(); 2].map(|()| Trial::new(growing(7), adam));
    run(&mut there, 0..20);
    let record = there.optim.to_record().into_bytes().unwrap();
    let record = AmpRecord::from_bytes(record).unwrap();
    assert_eq!(record.masters(), 6);
    assert_eq!(record.counters().unwrap().steps(), 20);
    let (model, before) = (there.net.clone().into_record(), there.parameters());
    // It has changed nothing: the training goes on a step behind.
    there.synchronize();
    assert!(there.parameters() != before);

    here.optim.load_record(record.clone()).unwrap();
    here.net = here.net.load_record(model);
    assert!(here.parameters() == before);
    here.synchronize();
    for trial in [&mut there, &mut here] {
        synchronized(trial, 20..30);
    }
    assert!(here.parameters() == there.parameters());

    // Without a pipeline, it would be lost in silence.
    let mut optim = adam(&growing(7));
    let error = optim.load_record(record.clone()).unwrap_err();
    is_error(&error, "ForeignRecord", ["master"]);
    let without = record.clone().without_masters();
    optim.load_record(without).unwrap();
    assert_eq!(optim.scaler().counters().steps(), 20);

    // The masters of another model are refused, and are there still.
    let Trial { mut optim, net, .. } = Trial::new(growing(7), adam);
    optim.load_record(record).unwrap();
    let failed = optim.synchronize(net).unwrap_err();
    says(&failed, ["load the model's own record"]);
    assert_eq!(optim.to_record().masters(), 6);
}

#[test]
fn a_damaged_record_leaves_all_as_it_was() {
    let mut trial = Trial::new(growing(7), adam);
    run(&mut trial, 0..5);
    let (before, scale) = (bytes(&mut trial.optim), trial.amp.loss_scale());
    let mut damaged = before.clone();
    let last = damaged.len() - 3;
    damaged[last] ^= 1;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, damaged).unwrap();
    let error = trial.optim.load(&file).unwrap_err();
    is_error(&error, "DamagedRecord", []);
    let foreign = default_scaler().to_record();
    assert!(trial.optim.load_record(foreign).is_err());
    assert_eq!(trial.amp.loss_scale(), scale);
    assert!(bytes(&mut trial.optim) == before);
    synchronized(&mut trial, 5..8);
    assert_eq!(trial.counters().steps(), 8);
}
