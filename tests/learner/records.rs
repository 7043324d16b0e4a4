//! Checkpoints with and without this crate, whole and damaged.

use burn::optim::LionConfig;
use burn_pack::Writer;

use crate::support::*;

fn plain(run: &Run, optim: ModuleOptimizer, folder: &Folder) -> Vec<Values> {
    let learner = Learner::new(net(), optim, lr());
    let result = run.training(folder.path()).launch(learner);
    assert!(result.error.is_none());
    values(&result.model)
}

/// What an optimizer has counted or summed, of all parameters of the model.
fn state(folder: &Folder, epoch: usize) -> Vec<String> {
    let file = format!("checkpoint/optim-{epoch}.bpk");
    let pack = pack(&folder.path().join(file));
    let names = pack.tensors.keys().chain(pack.scalars.keys());
    let field = |name: &String| {
        let (id, field) = name.split_once('.').unwrap();
        (id != STATE_ID.to_string()).then(|| field.to_string())
    };
    let mut names: Vec<_> = names.filter_map(field).collect();
    names.sort();
    names
}

/// A Learner without this crate goes on from a checkpoint with a scaler, whatever its optimizer, and a scaled Learner from the plain one:
/// the optimizer's state is taken over, the scaler starts fresh.
#[test]
fn plain_and_scaled_learners_resume_from_each_other() {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let masters = MasterWeights::new(AdamConfig::new().build());
    for (optim, has_state) in [
        (AdamConfig::new().init(), true),
        (AdamWConfig::new().init(), true),
        (LionConfig::new().init(), true),
        (RmsPropConfig::new().init(), true),
        (SgdConfig::new().init(), false),
        (momentum.init(), true),
        (masters.into_inner(), true),
    ] {
        let scaled = with(|_| optim.clone());
        let Done { model, folder, .. } = Run::of(1).launch_with(&scaled);
        let forgetful = temp_dir();
        copy(folder.path(), forgetful.path());
        let second = plain(&Run::of(2).resumed(1), optim.clone(), &folder);
        assert!(second != values(&model));
        assert_eq!(state(&folder, 1), state(&folder, 2));

        // The state was taken over: with a fresh one, the second epoch is another.
        let file = forgetful.path().join("checkpoint/optim-1.bpk");
        Writer::new(Vec::new()).write_to_file(file).unwrap();
        let other = plain(&Run::of(2).resumed(1), optim.clone(), &forgetful);
        assert_eq!(other != second, has_state);

        // And back again: what comes from a plain run has no scaler.
        let checkpoint = Resume::check(folder.path(), 2).unwrap();
        assert!(checkpoint.record().is_none());
        let third = Run::of(3).resumed(2).launch_in(&folder, &scaled);
        assert_eq!(third.counters().steps(), 6);
        assert_eq!(state(&folder, 2), state(&folder, 3));
        assert_eq!(third.stored_state(3), third.model.scaler().bits());
    }
}

/// The rest of the run is bit for bit that of the Learner.
#[test]
fn a_loop_goes_on_from_a_checkpoint() {
    let run = Run::default().poisoned([20]);
    let whole = run.launch();
    let learners: [fn(&MixedPrecision) -> Made; 3] = [burns, crate::fused::learner, |amp| {
        amp.learner(net(), pipelined(adam(amp)).with_synchronous(true), lr())
    }];
    for learner in learners {
        let folder = run.clone().until(2).launch_with(learner).folder;
        let amp = run.amp();
        let (net, mut optim) = amp.prepare(net(), AdamConfig::new().init());
        let file = |name: &str| folder.path().join(format!("checkpoint/{name}-2.bpk"));
        let mut net = net.try_load_file(file("model")).unwrap();
        optim.load(file("optim")).unwrap();
        let mut lr = lr();
        (0..12).for_each(|_| _ = lr.step());
        for batch in [(); 2].map(|()| batches(&run.samples)).concat() {
            let logits = amp.autocast(batch.features.clone(), |x| net.forward(x));
            let loss = net.output(logits, batch).loss;
            let grads = GradientsParams::from_grads(loss.backward(), &net);
            net = optim.step(lr.step(), net, grads);
        }
        assert!((values(&net), optim.scaler().bits()) == whole.bits());
    }
}

/// The first forward pass of a resumed run has the scale of the checkpoint already.
#[test]
fn the_loss_scale_is_there_as_soon_as_the_checkpoint_is_read() {
    let done = Run::of(2).launch();
    let scale = done.model.scaler().loss_scale();
    assert!(scale != 65536.0, "{scale}");
    let second = Run::of(2).resumed(2);
    let amp = second.amp();
    let mut learner = burns(&amp).unwrap();
    assert_eq!(amp.loss_scale(), 65536.0);
    let file = done.folder.path().join("checkpoint/optim-2.bpk");
    learner.load_optim(OptimizerRecord::load(file).unwrap());
    assert_eq!(amp.loss_scale(), scale);
}

/// Changes the bytes of the scaler's state.
fn rewrite_state(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut pack = pack(path);
    let state = pack.tensors.get_mut(&format!("{STATE_ID}.scaler"));
    let (_, (_, shape, bytes)) = state.unwrap();
    change(bytes);
    *shape = vec![bytes.len()];
    fs::write(path, &pack.into_bytes()[..]).unwrap();
}

/// The first checkpoint cannot be read, with an error of this variant that names the file.
fn assert_refused(folder: &Folder, file: &Path, variant: &str) {
    let error = Resume::check(folder.path(), 1).unwrap_err();
    let named = format!("{variant} {{ origin: {file:?},");
    is_error(&error, &named, []);
}

/// A damaged state, and files that are cut off and missing.
#[test]
fn what_cannot_be_read_is_an_error_that_names_the_file() {
    let folder = Run::of(1).launch().folder;
    let file = |name: &str| folder.path().join(format!("checkpoint/{name}-1.bpk"));
    let flipped = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let damages: [fn(&mut Vec<u8>); 3] = [flipped, |bytes| bytes.truncate(10), Vec::clear];
    let honest = fs::read(file("optim")).unwrap();
    for damage in damages {
        rewrite_state(&file("optim"), damage);
        assert_refused(&folder, &file("optim"), "DamagedRecord");
    }
    // A Learner can only panic there, as Burn does on any checkpoint that it cannot read.
    let second = Run::of(2);
    let message = panic_message(|| {
        let learner = burns(&second.amp()).unwrap();
        second.training(folder.path()).checkpoint(1).launch(learner)
    });
    says(&message, ["the loss scaler's state", "Resume::check"]);

    fs::write(file("optim"), honest).unwrap();
    for name in ["model", "optim", "scheduler"] {
        let bytes = fs::read(file(name)).unwrap();
        // The scheduler's file is a head and little more.
        let kept = match name {
            "scheduler" => 40,
            _ => bytes.len() / 2,
        };
        fs::write(file(name), &bytes[..kept]).unwrap();
        assert_refused(&folder, &file(name), "DamagedRecord");
        fs::remove_file(file(name)).unwrap();
        assert_refused(&folder, &file(name), "RecordIo");
        fs::write(file(name), bytes).unwrap();
    }
    assert!(Resume::check(folder.path(), 1).unwrap().record().is_some());
}
