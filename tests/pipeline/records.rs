//! Records that are refused. That what is on its way is done first, and that a run goes on from there bit for bit, from a model that is behind too,
//! `tests/oracle` draws.

use crate::support::*;

/// Without a pipeline, the last update would be lost in silence; and the masters of another model are refused, and are there still.
#[test]
fn masters_belong_to_a_pipeline_and_its_model() {
    let mut trial = Trial::new(growing(7), adam);
    (0..20).for_each(|step| trial.step(step, false));
    let record = trial.optim.to_record();
    assert_eq!(record.masters(), 6);

    let mut optim = adam(&growing(7));
    let error = optim.load_record(record.clone()).unwrap_err();
    is_error(&error, "ForeignRecord", ["master"]);
    let without = record.clone().without_masters();
    optim.load_record(without).unwrap();
    assert_eq!(optim.scaler().counters().steps(), 20);

    let Trial { mut optim, net, .. } = Trial::new(growing(7), adam);
    optim.load_record(record).unwrap();
    let failed = optim.synchronize(net).unwrap_err();
    let parts = ["load the model's own record"];
    is_error(&failed.error, "ForeignRecord", parts);
    assert_eq!(optim.to_record().masters(), 6);
}

#[test]
fn a_damaged_record_leaves_all_as_it_was() {
    let mut trial = Trial::new(growing(7), adam);
    (0..5).for_each(|step| trial.step(step, false));
    let bytes = |trial: &mut Trial| trial.optim.to_record().into_bytes().unwrap();
    let (before, scale) = (bytes(&mut trial), trial.amp.loss_scale());
    let mut damaged = before.to_vec();
    let last = damaged.len() - 3;
    damaged[last] ^= 1;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, damaged).unwrap();
    let error = trial.optim.load(&file).unwrap_err();
    is_error(&error, "DamagedRecord", []);
    let foreign = default_scaler().to_record();
    assert!(trial.optim.load_record(foreign).is_err());
    assert_eq!(trial.amp.loss_scale(), scale);
    assert!(bytes(&mut trial) == before);
    (5..8).for_each(|step| trial.step(step, false));
    trial.synchronize();
    assert_eq!(trial.counters().steps(), 8);
}
