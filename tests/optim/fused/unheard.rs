//! Steps that nobody waits for: what is known of them, and when; clones, loads and limits while they are under way.

use burn_amp_tests::prelude::*;

use burn_amp_tests::{fill, stored};
use burn_pack::DType as Stored;

use super::gradients;

/// The same optimizer, whose outcomes are waited for.
#[derive(Clone)]
pub struct Waited<O>(pub O);

impl<O: ModuleOptim> ModuleOptim for Waited<O> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.0.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.0.accepts(parameter, gradient)
    }

    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        self.0.to_record()
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        self.0.load_record(record)
    }

    fn takes_factors(&self) -> bool {
        self.0.takes_factors()
    }

    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        self.0.one_pass()
    }
}

/// What goes wrong in a step.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Event {
    Nothing,
    /// A gradient that no loss scale of this size lets through.
    Overflow,
    /// A loss that is not a number.
    Nan,
}

#[derive(Module, Debug)]
pub(super) struct Net {
    pub(super) hidden: Linear,
    pub(super) output: Linear,
}

impl Net {
    pub(super) fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let net = Self {
            hidden: linear(6, 10),
            output: linear(10, 2),
        };
        fill(net, 0, 0.25)
    }

    pub(super) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.hidden.forward(x).tanh())
    }
}

impl Net {
    /// The bits of all parameters.
    pub(super) fn values(&self) -> Values {
        stored(self)
    }
}

/// Parameters, bit for bit.
pub(super) type Values = Vec<(Stored, Vec<u8>)>;

#[derive(Clone)]
pub struct Run<O> {
    pub amp: MixedPrecision,
    pub net: Net,
    pub optim: ScaledOptimizer<O>,
    device: Device,
}

impl<O: ModuleOptim> Run<O> {
    fn new(optim: O, config: GradScalerConfig) -> Self {
        let device = Device::default().autodiff();
        Self::of(&Net::new(&device), optim, config)
    }

    pub fn of(net: &Net, optim: O, config: GradScalerConfig) -> Self {
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        Self {
            device: net.hidden.weight.device(),
            net: net.clone().apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(optim, &amp),
            amp,
        }
    }

    pub fn step(&mut self, step: usize, event: Event) -> Result<(), AmpError> {
        let value = |index: usize| ((index * 13 + step * 7) % 32) as f32 / 16.0 - 1.0;
        let input: Vec<f32> = (0..24).map(value).collect();
        let input = Tensor::<1>::from_floats(input.as_slice(), &self.device).reshape([4, 6]);
        let output = self.amp.autocast(input, |x| self.net.forward(x));
        let loss = (output - 0.5).square().mean();
        let loss = match event {
            Event::Nothing => loss,
            Event::Overflow => loss * 1e9,
            Event::Nan => loss * f32::NAN,
        };
        let grads = GradientsParams::from_grads(loss.backward(), &self.net);
        // Others change, as a schedule makes them.
        let lr = 1e-3 / (1.0 + step as f64 / 500.0);
        match self.optim.try_step(lr, self.net.clone(), grads) {
            Ok(net) => {
                self.net = net;
                Ok(())
            }
            Err(error) => Err(error.error),
        }
    }

    pub fn step_in(&mut self, dtype: FloatDType, step: usize, overflows: bool) {
        let mut grads = gradients(&self.net, step % 40, dtype);
        if overflows {
            let id = self.net.output.weight.id;
            let grad = grads.remove::<2>(id).unwrap();
            grads.register(id, grad * f32::INFINITY);
        }
        self.net = self.optim.step(1e-3, self.net.clone(), grads);
    }

    pub(super) fn values(&self) -> Values {
        self.net.values()
    }
}

/// Where something goes wrong: some at the begin, in a row, and one in a hundred.
pub(super) fn event(step: usize) -> Event {
    match step {
        0 | 1 | 5 => Event::Overflow,
        40..44 => Event::Overflow,
        7 | 300 => Event::Nan,
        step if step % 97 == 96 => Event::Overflow,
        _ => Event::Nothing,
    }
}

pub(super) fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_growth_interval(50)
}

pub(super) fn is_flex() -> bool {
    Device::default() == Device::flex()
}

#[test]
fn the_host_hears_of_a_step_with_the_next_one() {
    let mut run = Run::new(FusedAdam::new(AdamConfig::new()).unwrap(), config());
    let before = run.values();
    run.step(0, Event::Overflow).unwrap();
    assert_eq!(run.values(), before, "skipped on the device");
    let counters = |run: &Run<FusedAdam>| {
        let counters = run.optim.scaler().counters();
        (counters.steps(), counters.skipped())
    };
    assert_eq!(counters(&run), (0, 0));
    run.step(1, Event::Nothing).unwrap();
    assert_ne!(run.values(), before);
    run.optim.synchronize().unwrap();
    assert_eq!(counters(&run), (2, 1));
    assert_eq!(
        run.optim.scaler().last_outcome(),
        Some(StepOutcome::Stepped)
    );
    assert_eq!(run.amp.loss_scale(), 32768.0);
}

#[test]
fn a_run_ends_where_too_many_were_skipped() {
    let config = config().with_max_consecutive_skips(Some(3));
    let mut run = Run::new(FusedAdam::new(AdamConfig::new()).unwrap(), config);
    let before = run.values();
    let error = (0..20).find_map(|step| run.step(step, Event::Overflow).err());
    let error = error.or_else(|| run.optim.synchronize().err());
    assert!(matches!(
        error,
        Some(AmpError::LossScaleExhausted { skips: 4, .. })
    ));
    assert_eq!(run.values(), before);
}

#[test]
fn a_state_is_loaded_over_steps_that_are_under_way() {
    let adam = || FusedAdam::new(AdamConfig::new()).unwrap();
    let mut run = Run::new(adam(), config());
    for step in 0..10 {
        run.step(step, event(step)).unwrap();
    }
    let (net, bytes) = (run.net.clone(), run.optim.into_bytes().unwrap());
    let mut ends = Vec::new();
    for _ in 0..2 {
        for step in 10..20 {
            run.step(step, event(step)).unwrap();
        }
        ends.push(run.values());
        run.net = net.clone();
        run.optim.from_bytes(bytes.clone()).unwrap();
    }
    assert_eq!(ends[0], ends[1]);
    // And by an optimizer that knows nothing.
    run.optim = ScaledOptimizer::new(adam(), &run.amp);
    run.optim.from_bytes(bytes).unwrap();
    for step in 10..20 {
        run.step(step, event(step)).unwrap();
    }
    assert_eq!(run.values(), ends[0]);
}

#[test]
fn a_clone_goes_on_by_itself() {
    let mut run = Run::new(FusedAdam::new(AdamConfig::new()).unwrap(), config());
    for step in 0..8 {
        run.step(step, event(step)).unwrap();
    }
    let mut fork = run.optim.clone().into_inner();
    let grads = |net: &Net, device: &Device| {
        let loss = net.forward(Tensor::ones([4, 6], device)).mean();
        GradientsParams::from_grads(loss.backward(), net)
    };
    let device = run.device.clone();
    let forked = fork.step(0.01, run.net.clone(), grads(&run.net, &device));
    let net = run.net.clone();
    let mut original = run.optim.into_inner();
    let stepped = original.step(0.01, net.clone(), grads(&net, &device));
    let value = |net: &Net| net.hidden.weight.base().clone().inner().into_data();
    assert_eq!(value(&forked), value(&stepped));
}

/// Whatever the original does meanwhile, and whichever of the two is told first.
#[test]
fn a_clone_is_of_its_moment() {
    fn moment<O: ModuleOptim + Clone>(optim: O, clone_first: bool) -> (StepCounters, Values) {
        let mut run = Run::new(optim, config());
        for step in 0..6 {
            run.step(step, event(step)).unwrap();
        }
        // The last step was skipped, and so are some of the next ones.
        let (mut copy, net) = (run.optim.clone(), run.net.clone());
        if clone_first {
            copy.synchronize().unwrap();
        }
        for step in 6..12 {
            run.step(
                step,
                if step % 2 == 0 {
                    Event::Overflow
                } else {
                    Event::Nothing
                },
            )
            .unwrap();
        }
        run.optim.synchronize().unwrap();
        assert_eq!(run.optim.scaler().counters().skipped(), 6);
        copy.synchronize().unwrap();
        let counters = copy.scaler().counters();
        // Adam's time shows in the step.
        let loss = net.forward(Tensor::ones([4, 6], &run.device)).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        run.net = copy.into_inner().step(0.01.into(), net, grads);
        (counters, run.values())
    }

    let fused = || FusedAdam::new(AdamConfig::new()).unwrap();
    for clone_first in [false, true] {
        let waited = moment(Waited(fused()), clone_first);
        assert_eq!((waited.0.steps(), waited.0.skipped()), (6, 3));
        assert_eq!(moment(fused(), clone_first), waited);
    }
}

/// Where the original is dropped, nothing is lost of its last steps.
#[test]
fn a_clone_goes_on_in_its_place() {
    fn replaced<O: ModuleOptim + Clone>(optim: O) -> (StepCounters, f32, Values) {
        let mut run = Run::new(optim, config());
        for step in 0..60 {
            run.step(step, event(step)).unwrap();
            if step % 3 == 1 {
                run.optim = run.optim.clone();
            }
        }
        run.optim.synchronize().unwrap();
        (
            run.optim.scaler().counters(),
            run.amp.loss_scale(),
            run.values(),
        )
    }

    let fused = || FusedAdam::new(AdamConfig::new()).unwrap();
    assert_eq!(replaced(fused()), replaced(Waited(fused())));
}

#[test]
fn another_optimizer_takes_the_scale_over() {
    for is_dropped in [false, true] {
        let mut run = Run::new(FusedAdam::new(AdamConfig::new()).unwrap(), config());
        for step in 10..15 {
            run.step(step, event(step)).unwrap();
        }
        let Run {
            amp,
            net,
            optim,
            device,
        } = run;
        let kept = (!is_dropped).then_some(optim);
        let mut plain = Run {
            optim: ScaledOptimizer::new(SgdConfig::new().init(), &amp),
            device,
            amp,
            net,
        };
        // The scopes take the scale from where it moves now: in the end nothing overflows.
        for step in 0..40 {
            plain.step(step, Event::Overflow).unwrap();
        }
        let skipped = plain.optim.scaler().counters().skipped();
        assert!((1..40).contains(&skipped), "{skipped}");
        drop(kept);
    }
}
