//! A `PipelinedOptimizer` in a Learner: one update behind between two validations, and stored as if it were not.

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{DType, Device, FloatDType},
    train::{Learner, LearningResult},
};
use burn_amp::{
    AmpError, EmaConfig, FusedAdam, GradScalerConfig, GradientClip, MixedPrecision,
    PipelinedOptimizer, Resume, Scaled, ScaledOptimizer, to_half,
};
use std::path::Path;

use crate::{
    master::Half,
    resume::{assert_same, shuffled_run},
    support::{Net, Run, loader, lr, poison, read_metric, scaler_state, spoil, temp_dir, values},
};

fn optimizer(amp: &MixedPrecision, synchronous: bool) -> PipelinedOptimizer<ModuleOptimizer> {
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
    let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    optim.with_synchronous(synchronous)
}

fn learner(amp: &MixedPrecision, synchronous: bool) -> Learner<Scaled<Net>> {
    let net = Net::new(&Device::default().autodiff());
    amp.learner(net, optimizer(amp, synchronous), lr()).unwrap()
}

fn launch(run: &Run, folder: &Path, synchronous: bool) -> LearningResult<Scaled<Net>> {
    let amp = run.amp();
    let learner = learner(&amp, synchronous);
    amp.training(run.training(folder)).launch(learner)
}

/// The same run by hand, which synchronizes where a Learner validates.
fn by_hand(run: &Run, amp: &MixedPrecision) -> Net {
    let device = Device::default().autodiff();
    let mut optim = optimizer(amp, false);
    let mut net = Net::new(&device).apply_reparameterization(amp.clone());
    let mut lr = lr();
    let batches = loader(run.samples.clone(), None).to_device(&device);
    for _ in 0..run.epochs {
        for batch in batches.iter() {
            let batch = batch.unwrap();
            let logits = amp.autocast(batch.features.clone(), |x| net.forward(x));
            let loss = net.output(logits, batch).loss;
            let grads = GradientsParams::from_grads(loss.backward(), &net);
            net = optim.step(lr.step(), net, grads);
        }
        net = optim.synchronize(net).unwrap();
    }
    net
}

#[test]
fn a_learner_steps_as_a_loop_by_hand() {
    let mut run = Run::default();
    poison(&mut run.samples, 20);
    let folder = temp_dir();
    let result = launch(&run, folder.path(), false);
    assert!(result.error.is_none());
    let amp = run.amp();
    let net = by_hand(&run, &amp);
    assert!(values(&result.model) == values(&net));
    let scaler = result.model.scaler();
    assert_eq!(scaler.counters().steps(), 24);
    assert_eq!(scaler.counters().skipped(), 4);
    assert_eq!(scaler.loss_scale(), amp.loss_scale());
    // It is not what a run without a pipeline gives.
    let plain = run.launch(temp_dir().path()).model;
    assert!(values(&result.model) != values(&plain));
}

/// Turned off, it is the run without it: the model, and every byte of its checkpoints.
#[test]
fn a_synchronous_run_is_the_one_without_a_pipeline() {
    let run = shuffled_run();
    let (plain, pipelined) = (temp_dir(), temp_dir());
    let expected = run.launch(plain.path()).model;
    let model = launch(&run, pipelined.path(), true).model;
    assert_same((plain.path(), &expected), (pipelined.path(), &model), 4);
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let (whole, parts) = (temp_dir(), temp_dir());
    let uninterrupted = launch(&shuffled_run(), whole.path(), false).model;
    assert!(uninterrupted.scaler().counters().skipped() >= 4);

    let first = Run {
        epochs: 2,
        ..shuffled_run()
    };
    launch(&first, parts.path(), false);
    let second = Run {
        resume: Some(2),
        ..shuffled_run()
    };
    let resumed = launch(&second, parts.path(), false).model;
    assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
}

/// A run may be resumed without the pipeline, and one without it with it.
#[test]
fn checkpoints_know_nothing_of_the_pipeline() {
    for pipelined_first in [false, true] {
        let folder = temp_dir();
        let first = Run {
            epochs: 2,
            ..shuffled_run()
        };
        let half = match pipelined_first {
            true => launch(&first, folder.path(), false).model,
            false => first.launch(folder.path()).model,
        };
        let stored = Resume::check(folder.path(), 2).unwrap();
        let counters = stored.record().unwrap().counters().unwrap();
        assert_eq!(counters, half.scaler().counters());
        let second = Run {
            resume: Some(2),
            ..shuffled_run()
        };
        let model = match pipelined_first {
            true => second.launch(folder.path()).model,
            false => launch(&second, folder.path(), false).model,
        };
        assert_eq!(model.scaler().counters().steps(), 24);
        assert!(model.scaler().counters().skipped() > counters.skipped());
    }
}

/// Every step is in the metrics, though its outcome is known a step late.
#[test]
fn metrics_have_every_step() {
    let folder = temp_dir();
    let mut run = Run {
        epochs: 1,
        config: GradScalerConfig::new(),
        ..Run::default()
    };
    poison(&mut run.samples, 2 * 8 + 3);
    let model = launch(&run, folder.path(), false).model;
    assert_eq!(model.scaler().counters().skipped(), 1);
    let skips = read_metric(folder.path(), 1, "Skipped Steps");
    let skipped = skips.iter().filter(|line| line.starts_with("100,")).count();
    assert_eq!(skipped, 1, "{skips:?}");
    let scales = read_metric(folder.path(), 1, "Loss Scale");
    assert!(
        scales.iter().any(|line| line.starts_with("32768")),
        "{scales:?}"
    );
}

#[test]
fn clipping_goes_with_the_optimizer() {
    let run = Run::default();
    let launch = |clip: Option<GradientClip>, pipelined: bool| {
        let amp = run.amp();
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
        let optim = match clip {
            Some(clip) => optim.with_clipping(clip).unwrap(),
            None => optim,
        };
        let net = Net::new(&Device::default().autodiff());
        let learner = match pipelined {
            true => {
                let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
                amp.learner(net, optim.with_synchronous(true), lr())
                    .unwrap()
            }
            false => amp.learner(net, optim, lr()).unwrap(),
        };
        let folder = temp_dir();
        run.training(folder.path()).launch(learner).model
    };
    let clip = || Some(GradientClip::Value(1e-4));
    let clipped = launch(clip(), true);
    assert!(values(&clipped) == values(&launch(clip(), false)));
    assert!(values(&clipped) != values(&launch(None, true)));
}

/// Parameters that are bf16 themselves: the masters are in the checkpoint.
#[test]
fn half_precision_parameters_resume_from_their_masters() {
    let train = |folder: &Path, epochs: usize, resume: Option<usize>| {
        let run = Run {
            epochs,
            resume,
            ..shuffled_run()
        };
        let amp = MixedPrecision::bf16();
        let device = Device::default().autodiff();
        let net = to_half(Net::new(&device), FloatDType::BF16, &[]);
        let optim = PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
        let learner = amp.learner(Half { net }, optim, lr()).unwrap();
        run.training(folder).launch(learner).model
    };
    let (whole, parts) = (temp_dir(), temp_dir());
    let expected = train(whole.path(), 4, None);
    assert_eq!(expected.net.hidden.weight.val().dtype(), DType::BF16);
    train(parts.path(), 2, None);
    let stored = Resume::check(parts.path(), 2).unwrap();
    assert_eq!(stored.record().unwrap().masters(), 4);
    let resumed = train(parts.path(), 4, Some(2));
    assert!(values(&resumed.net) == values(&expected.net));
    assert_eq!(
        scaler_state(resumed.scaler()),
        scaler_state(expected.scaler())
    );
}

#[test]
fn an_exhausted_scale_ends_the_run() {
    let mut run = Run {
        epochs: 3,
        config: GradScalerConfig::new().with_max_consecutive_skips(Some(2)),
        ..Run::default()
    };
    for sample in 0..run.samples.len() {
        spoil(&mut run.samples, sample);
    }
    let amp = run.amp();
    let folder = temp_dir();
    let learner = learner(&amp, false);
    let result = amp.training(run.training(folder.path())).launch(learner);
    assert!(result.error.is_some());
    let error = amp.run_result().unwrap_err();
    assert!(matches!(error, AmpError::LossNotFinite { .. }), "{error}");
    // The update that fails is known a step later.
    assert_eq!(amp.counters().steps(), 3);
}

/// Of another optimizer nobody knows the kind: it is stepped as Burn's, on the thread again.
#[test]
fn another_optimizer_goes_on_with_the_model() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let amp = run.amp();
    let fused = ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()).unwrap(), &amp);
    let fused = PipelinedOptimizer::new(fused, Device::flex()).unwrap();
    let learner = amp
        .learner(Net::new(&Device::default().autodiff()), fused, lr())
        .unwrap();
    let model = run.training(temp_dir().path()).launch(learner).model;
    let before = values(&model);
    let again = Learner::new(model.train(), AdamConfig::new().init(), lr());
    let result = run.training(temp_dir().path()).launch(again);
    assert!(result.error.is_none());
    assert_eq!(result.model.scaler().counters().steps(), 12);
    assert!(values(&result.model) != before);
}

#[test]
fn averages_are_refused() {
    let amp = MixedPrecision::f16();
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let optim = optim.with_ema(EmaConfig::new()).unwrap();
    let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let net = Net::new(&Device::default().autodiff());
    let error = amp.learner(net, optim, lr()).map(drop).unwrap_err();
    assert!(
        matches!(
            error,
            AmpError::InvalidValue {
                field: "with_ema",
                ..
            }
        ),
        "{error}"
    );
}
