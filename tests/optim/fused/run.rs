//! Runs in f16 in which something goes wrong now and then.

use super::adam;
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

pub fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_growth_interval(50)
}

/// A network in training, whose steps the host or the device decides, as its optimizer does.
pub type Run<O = FusedAdam> = Player<Net, O>;

pub fn begun<O: ModuleOptim>(optim: O, config: GradScalerConfig) -> Run<O> {
    Run::with(optim, Net::dense(&device()), &f16_under(config))
}

pub fn step<O: ModuleOptim>(run: &mut Run<O>, step: usize, event: Event) -> Result<(), AmpError> {
    let loss = loss(&run.amp, &run.model, batch(step, event, 4));
    run.try_step(1e-3, run.gradients(loss))
}

/// A step that does not fail. Returns the loss.
pub fn train<O: ModuleOptim>(run: &mut Run<O>, lr: f64, batch: Batch) -> Tensor<1> {
    let loss = loss(&run.amp, &run.model, batch);
    run.train(lr, loss.clone());
    loss.inner()
}

/// Its next steps are recorded, where the device can.
pub fn captured(run: Run) -> Captured {
    let amp = run.amp;
    let of = move |net: &Net, batch: Batch| loss(&amp, net, batch);
    CapturedStep::new(run.model, run.optim, Box::new(of) as Loss).unwrap()
}

type Loss = Box<dyn FnMut(&Net, Batch) -> Tensor<1>>;

pub type Captured = CapturedStep<Net, Batch, FusedAdam, Loss>;

/// A batch in which nothing goes wrong, of that many rows.
pub fn of_rows(rows: usize) -> Batch {
    batch(rows, Event::Nothing, rows)
}

pub fn default_run() -> Run {
    begun(adam(), GradScalerConfig::new())
}

/// Whether the default device records steps.
pub fn has_graphs() -> bool {
    let mut step = captured(default_run());
    step.step(1e-3, of_rows(4)).unwrap();
    step.shapes() > 0
}
