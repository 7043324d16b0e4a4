//! Runs in f16 in which something goes wrong now and then.

use super::adam;
use crate::support::*;

/// A factor of the loss with which no scale of this size lets a gradient through.
pub const OVERFLOW: f32 = 1e9;

/// The inputs, and what the loss is multiplied by.
pub type Batch = (Tensor<2>, Tensor<1>);

/// Of that many rows, each number of which is another shape.
pub fn batch(step: usize, factor: f32, rows: usize) -> Batch {
    let input = random(100 * step, [rows, 8], &device());
    (input, Tensor::from_floats([factor], &device()))
}

pub fn loss(net: &Net, amp: &MixedPrecision, (x, factor): Batch) -> Tensor<1> {
    let output = amp.autocast(x, |x| net.forward(x));
    (output - 0.5).square().mean() * factor
}

/// A network in training, whose steps the host or the device decides, as its optimizer does.
pub type Run<O = FusedAdam> = Player<Net, O>;

pub fn begun<O: ModuleOptim>(optim: O, config: GradScalerConfig) -> Run<O> {
    Run::with(optim, Net::new(&device()), &f16_under(config))
}

pub fn step<O: ModuleOptim>(run: &mut Run<O>, step: usize, factor: f32) -> Result<(), AmpError> {
    let loss = loss(&run.model, &run.amp, batch(step, factor, 4));
    run.try_step(1e-3, run.gradients(loss))
}

/// A step that does not fail.
pub fn train(run: &mut Run, lr: f64, batch: Batch) {
    let loss = loss(&run.model, &run.amp, batch);
    run.train(lr, loss);
}

/// Its next steps are recorded, where the device can.
pub fn captured(
    run: Run,
) -> CapturedStep<Net, Batch, FusedAdam, impl FnMut(&Net, Batch) -> Tensor<1>> {
    let of = move |net: &Net, batch: Batch| loss(net, &run.amp, batch);
    CapturedStep::new(run.model, run.optim, of).unwrap()
}

/// A batch in which nothing goes wrong, of that many rows.
pub fn of_rows(rows: usize) -> Batch {
    batch(rows, 1.0, rows)
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
