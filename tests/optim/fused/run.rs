//! Runs in f16 in which something goes wrong now and then: their steps are decided by the host or by the device, or recorded.

use crate::support::*;

/// What goes wrong in a step.
#[derive(Clone, Copy, PartialEq)]
pub enum Event {
    Nothing,
    /// A gradient that no loss scale of this size lets through.
    Overflow,
    /// A loss that is not a number.
    Nan,
}

/// Where something goes wrong: some at the begin, in a row, and one in a hundred.
pub fn event(step: usize) -> Event {
    match step {
        0 | 1 | 5 | 40..44 => Event::Overflow,
        7 | 300 => Event::Nan,
        step if step % 97 == 96 => Event::Overflow,
        _ => Event::Nothing,
    }
}

/// Parameters, bit for bit.
pub type Values = Vec<(DType, Vec<u8>)>;

/// The inputs, and what the loss is multiplied by.
pub type Batch = (Tensor<2>, Tensor<1>);

/// Of that many rows, each number of which is another shape.
pub fn batch(step: usize, event: Event, rows: usize) -> Batch {
    let device = Device::default().autodiff();
    let value = |index: usize| ((index * 13 + step * 7) % 32) as f32 / 16.0 - 1.0;
    let values = (0..rows * 8).map(value).collect::<Vec<f32>>();
    let input = Tensor::from_data(TensorData::new(values, [rows, 8]), &device);
    let factor = match event {
        Event::Nothing => 1.0,
        Event::Overflow => 1e9,
        Event::Nan => f32::NAN,
    };
    (input, Tensor::from_floats([factor], &device))
}

pub fn loss(amp: &MixedPrecision, net: &Net, (x, factor): Batch) -> Tensor<1> {
    let output = amp.autocast(x, |x| net.forward(x));
    (output - 0.5).square().mean() * factor
}

/// As a schedule makes it.
pub fn learning_rate(step: usize) -> f64 {
    1e-3 / (1.0 + step as f64 / 500.0)
}

pub fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

pub fn nesterov() -> FusedSgd {
    let momentum = MomentumConfig::new().with_nesterov(true);
    FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum)))
}

pub fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_growth_interval(50)
}

pub fn is_flex() -> bool {
    device() == flex()
}

/// A network in training, whose steps the host or the device decides, as its optimizer does.
pub type Run<O> = burn_amp_tests::Player<Net, O>;

pub fn begun<O: ModuleOptim>(optim: O, config: GradScalerConfig) -> Run<O> {
    Run::with(optim, Net::dense(&device()), &f16_under(config))
}

pub fn step<O: ModuleOptim>(run: &mut Run<O>, step: usize, event: Event) -> Result<(), AmpError> {
    let loss = loss(&run.amp, &run.model, batch(step, event, 4));
    run.try_step(learning_rate(step), run.gradients(loss))
}

/// A step that does not fail. Returns the loss.
pub fn train<O: ModuleOptim>(run: &mut Run<O>, lr: f64, batch: Batch) -> Tensor<1> {
    let loss = loss(&run.amp, &run.model, batch);
    run.train(lr, loss.clone());
    loss.inner()
}

/// Goes on from its own record with a new optimizer.
pub fn resume<O: ModuleOptim>(run: &mut Run<O>, optim: O) -> Bytes {
    let bytes = run.optim.into_bytes().unwrap();
    run.optim = ScaledOptimizer::new(optim, &run.amp);
    run.optim.from_bytes(bytes.clone()).unwrap();
    bytes
}

/// Its next steps are recorded, where the device can.
pub fn captured<O: ModuleOptim>(run: Run<O>) -> Captured<O> {
    let amp = run.amp;
    let of = move |net: &Net, batch: Batch| loss(&amp, net, batch);
    CapturedStep::new(run.model, run.optim, Box::new(of) as Loss).unwrap()
}

type Loss = Box<dyn FnMut(&Net, Batch) -> Tensor<1>>;

pub type Captured<O> = CapturedStep<Net, Batch, O, Loss>;

/// What makes steps, and what a test compares of it.
pub enum Executor<'a, O> {
    Run(&'a mut Run<O>),
    Captured(&'a mut Captured<O>),
}

impl<O: ModuleOptim> Executor<'_, O> {
    /// Returns the loss.
    pub fn step(&mut self, lr: f64, batch: Batch) -> Tensor<1> {
        match self {
            Self::Run(run) => train(run, lr, batch),
            Self::Captured(step) => step.step(lr, batch).unwrap(),
        }
    }

    pub fn net(&self) -> Net {
        match self {
            Self::Run(run) => run.model.clone(),
            Self::Captured(step) => step.model(),
        }
    }

    pub fn optim(&self) -> &ScaledOptimizer<O> {
        match self {
            Self::Run(run) => &run.optim,
            Self::Captured(step) => step.optim(),
        }
    }

    /// While steps are in flight.
    pub fn record(&mut self) -> Bytes {
        let record = match self {
            Self::Run(run) => run.optim.to_record(),
            Self::Captured(step) => step.to_record(),
        };
        record.into_bytes().unwrap()
    }

    pub fn synchronize(&mut self) {
        let done = match self {
            Self::Run(run) => run.optim.synchronize(),
            Self::Captured(step) => step.synchronize(),
        };
        done.unwrap();
    }

    /// What is not recorded: nothing else can change its network or its gradients between two steps.
    pub fn run(&mut self) -> &mut Run<O> {
        match self {
            Self::Run(run) => run,
            Self::Captured(_) => unreachable!("a captured step makes its own gradients"),
        }
    }
}
