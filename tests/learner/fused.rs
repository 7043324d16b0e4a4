//! A fused optimizer in a `Learner`, whose steps nobody waits for: the run is that of Burn's optimizer, whose steps are waited for, and each
//! goes on from the other's checkpoints.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{DType, Device},
    train::{Learner, metric::LearningRateMetric},
};
use burn_amp::{
    AmpError, FusedAdam, GradScalerConfig, GradientClip, MixedPrecision, ModuleOptim,
    PipelinedOptimizer, Scaled, ScaledLrScheduler, ScaledOptimizer,
};
use std::path::Path;

use crate::{
    resume::{assert_same, shuffled_run},
    schedule::{assert_close, expected, rates},
    support::{
        Net, Run, Values, all_finite, lr, poison, read_metric, scaler_state, temp_dir, values,
    },
};

fn fused() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

/// With the fused optimizer, or with Burn's.
fn launch(run: &Run, folder: &Path, is_fused: bool) -> Scaled<Net> {
    let amp = run.amp();
    let learner = match is_fused {
        true => {
            let net = Net::new(&Device::default().autodiff());
            amp.learner(net, fused(), lr()).unwrap()
        }
        false => run.learner(&amp),
    };
    let result = amp.training(run.training(folder)).launch(learner);
    assert!(result.error.is_none());
    result.model
}

#[test]
fn it_trains_as_burns_and_resumes_from_its_checkpoints() {
    if Device::default() != Device::flex() {
        // Closely as Burn's there, not bit for bit: one run alone.
        let folder = temp_dir();
        let model = launch(&Run::default(), folder.path(), true);
        assert!(model.scaler().counters().stepped() > 0);
        return;
    }
    let whole = temp_dir();
    let expected = launch(&shuffled_run(), whole.path(), false);
    let counters = expected.scaler().counters();
    assert!(counters.skipped() > 0 && counters.stepped() > 0);
    for is_fused in [true, false] {
        let folder = temp_dir();
        let first = Run {
            epochs: 2,
            ..shuffled_run()
        };
        launch(&first, folder.path(), is_fused);
        for goes_on_fused in [true, false] {
            let second = Run {
                resume: Some(2),
                ..shuffled_run()
            };
            let model = launch(&second, folder.path(), goes_on_fused);
            assert_same((whole.path(), &expected), (folder.path(), &model), 4);
        }
    }
}

/// With what a `ScaledOptimizer` adds.
#[test]
fn it_is_clipped_in_a_learner() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let clip = GradientClip::GlobalNorm(0.05);
    let trained = |learner, amp: &MixedPrecision| {
        let folder = temp_dir();
        let training = run.training(folder.path());
        values(&amp.training(training).launch(learner).model)
    };
    let amp = run.amp();
    let optim = ScaledOptimizer::new(fused(), &amp).with_clipping(clip);
    let clipped = trained(run.learner_of(&amp, optim.unwrap()), &amp);
    let amp = run.amp();
    let burns = ScaledOptimizer::new(AdamConfig::new().init(), &amp).with_clipping(clip);
    let expected = trained(run.learner_of(&amp, burns.unwrap()), &amp);
    // The coefficients are f32 numbers here, and f64 ones there.
    assert!(distance(&clipped, &expected) < 1e-5);
    let amp = run.amp();
    let unclipped = trained(run.learner(&amp), &amp);
    assert!(distance(&clipped, &unclipped) > 1e-4);
}

/// The largest difference of two values.
fn distance(one: &[Values], other: &[Values]) -> f32 {
    let floats = |values: &[Values]| -> Vec<f32> {
        let bytes = values.iter().flat_map(|(.., bytes)| bytes.as_chunks().0);
        bytes.map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    };
    let pairs = floats(one).into_iter().zip(floats(other));
    pairs
        .map(|(one, other)| (one - other).abs())
        .fold(0.0, f32::max)
}

fn learner(amp: &MixedPrecision) -> Learner<Scaled<Net>> {
    amp.learner(Net::new(&Device::default().autodiff()), fused(), lr())
        .unwrap()
}

/// The same optimizer, of which nobody knows that it need not be waited for.
struct Waited(FusedAdam);

impl ModuleOptim for Waited {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.0.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.0.accepts(parameter, gradient)
    }
}

impl From<Waited> for ModuleOptimizer {
    fn from(optim: Waited) -> Self {
        optim.0.into()
    }
}

/// Every third step is skipped, and the next one is decided before the host has heard of it.
#[test]
fn a_long_run_is_the_one_that_waits() {
    let on_flex = Device::default() == Device::flex();
    let mut run = Run {
        epochs: if on_flex { 30 } else { 5 },
        shuffle: Some(3),
        ..Run::default()
    };
    poison(&mut run.samples, 11);
    poison(&mut run.samples, 40);
    let launch = |learner: &dyn Fn(&MixedPrecision) -> Learner<Scaled<Net>>| {
        let folder = temp_dir();
        let amp = run.amp();
        let training = amp.training(run.training(folder.path()));
        let model = training.launch(learner(&amp)).model;
        let counters = model.scaler().counters();
        assert_eq!(counters, amp.counters());
        assert_eq!(counters.steps(), 6 * run.epochs as u64);
        assert!(counters.skipped() >= run.epochs as u64, "{counters:?}");
        (values(&model), scaler_state(model.scaler()))
    };
    let unheard = launch(&learner);
    let waited = launch(&|amp| run.learner_of(amp, ScaledOptimizer::new(Waited(fused()), amp)));
    assert!(unheard == waited);
    if on_flex {
        assert!(unheard == launch(&|amp| run.learner(amp)));
    }
}

/// The last ones, too, whose outcomes come after the last item of an epoch.
#[test]
fn metrics_are_of_the_steps_that_are_known() {
    let folder = temp_dir();
    let mut run = Run {
        epochs: 2,
        config: GradScalerConfig::new(),
        ..Run::default()
    };
    poison(&mut run.samples, 2 * 8 + 3);
    let amp = run.amp();
    let training = amp.training(run.training(folder.path()));
    let model = training.launch(learner(&amp)).model;
    assert_eq!(model.scaler().counters().skipped(), 2);
    let skipped = |epoch| {
        let skips = read_metric(folder.path(), epoch, "Skipped Steps");
        skips.iter().filter(|line| line.starts_with("100,")).count()
    };
    assert_eq!(skipped(1) + skipped(2), 2);
    let scales = read_metric(folder.path(), 1, "Loss Scale");
    assert!(
        scales.iter().any(|line| line.starts_with("32768")),
        "{scales:?}"
    );
}

/// The error is that of a step before, and ends the run all the same.
#[test]
fn an_exhausted_scale_ends_the_run() {
    let mut run = Run {
        epochs: 400,
        config: GradScalerConfig::new().with_max_consecutive_skips(Some(3)),
        ..Run::default()
    };
    (0..run.samples.len()).for_each(|index| poison(&mut run.samples, index));
    let folder = temp_dir();
    let amp = run.amp();
    let before = values(&Net::new(&Device::default().autodiff()));
    let training = amp.training(run.training(folder.path()));
    let result = training.launch(learner(&amp));
    let error = result.error.expect("an error").to_string();
    assert!(error.contains("loss scale exhausted"), "{error}");
    let error = amp.run_result().unwrap_err();
    assert!(
        matches!(error, AmpError::LossScaleExhausted { skips: 4, .. }),
        "{error}"
    );
    assert!(all_finite(&result.model));
    assert!(values(&result.model) == before);

    // Another optimizer, of which nobody knows the kind, goes on with the model.
    let good = Run {
        epochs: 1,
        ..Run::default()
    };
    let optim = AdamConfig::new().init();
    let again = Learner::new(result.model.train(), optim, lr());
    let folder = temp_dir();
    let training = amp.training(good.training(folder.path()));
    let result = training.launch(again);
    assert!(result.error.is_none());
    assert!(values(&result.model) != before);
}

/// A step after the one that was skipped. After an epoch, at once: a validation waits.
#[test]
fn a_schedule_holds_a_step_later() {
    if Device::default() != Device::flex() {
        return; // when the host hears of a step there is up to the device
    }
    let folder = temp_dir();
    let mut run = Run {
        epochs: 2,
        ..Run::default()
    };
    for batch in [2, 5] {
        poison(&mut run.samples, batch * 8);
    }
    let amp = run.amp();
    let net = Net::new(&Device::default().autodiff());
    let learner = amp
        .learner(net, fused(), ScaledLrScheduler::new(lr(), &amp))
        .unwrap();
    let training = run.training(folder.path());
    let training = amp.training(training.metric_train_numeric(LearningRateMetric::new()));
    let result = training.launch(learner);
    assert_eq!(result.model.scaler().counters().skipped(), 4);
    assert_close(&rates(folder.path(), 1), &expected(&[0, 1, 2, 3, 3, 4]));
    assert_close(&rates(folder.path(), 2), &expected(&[5, 6, 7, 8, 8, 9]));
}

/// One update behind, in one pass: with the numbers of Burn's optimizer in a pipeline.
#[test]
fn it_steps_in_a_pipeline() {
    let run = shuffled_run();
    let launch = |is_fused| {
        let folder = temp_dir();
        let amp = run.amp();
        let net = Net::new(&Device::default().autodiff());
        let learner = match is_fused {
            true => {
                let optim = ScaledOptimizer::new(fused(), &amp);
                let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
                amp.learner(net, optim, lr()).unwrap()
            }
            false => {
                let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
                let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
                amp.learner(net, optim, lr()).unwrap()
            }
        };
        let model = run.training(folder.path()).launch(learner).model;
        (values(&model), scaler_state(model.scaler()))
    };
    assert!(launch(true) == launch(false));
}
