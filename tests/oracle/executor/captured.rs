//! A `CapturedStep`. What it has no call for is done between two, with its parts.

use super::{Executor, scaled::Scaled};
use crate::model::{Gain, input, loss_of, slopes_of};
use crate::program::{Action, Program, Shape, Shown};
use burn::tensor::Tensor;
use burn_amp::optim::{CapturedStep, ModuleOptim};
use burn_amp_tests::Pack;

/// The model's input, and the slopes: the first as often as says which shape it is, since a step is recorded for each number of tensors, and the
/// other behind it.
type Batch = (Tensor<1>, Vec<Tensor<1>>);

type Loss = Box<dyn FnMut(&Gain, Batch) -> Tensor<1>>;

pub struct Captured<O> {
    scaled: Scaled<O>,
    captured: Option<CapturedStep<Gain, Batch, O, Loss>>,
}

impl<O: ModuleOptim + Clone> Captured<O> {
    pub fn new(program: &Program, make: fn() -> O) -> Self {
        let mut new = Self {
            scaled: Scaled::new(program, make).in_flight(),
            captured: None,
        };
        new.capture();
        new
    }

    fn capture(&mut self) {
        if let Some((model, optim)) = self.scaled.parts.take() {
            let amp = self.scaled.amp.clone();
            let loss: Loss = Box::new(move |model, (input, slopes)| {
                let shape = Shape::ALL[slopes.len() - 2];
                let [slope, .., beside] = &slopes[..] else {
                    unreachable!("there are two at least");
                };
                loss_of(&amp, model, shape, input, [slope.clone(), beside.clone()])
            });
            let captured = CapturedStep::new(model, optim, loss);
            self.captured = Some(captured.unwrap_or_else(|error| panic!("{error}")));
        }
    }

    fn release(&mut self) {
        if let Some(captured) = self.captured.take() {
            self.scaled.parts = Some(captured.into_parts());
        }
    }
}

impl<O: ModuleOptim + Clone> Executor for Captured<O> {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                self.capture();
                // Made beside autodiff, they cost no memory with each replay.
                let outside = |tensor: Tensor<1>| Tensor::from_inner(tensor.inner());
                let number = Shape::ALL.iter().position(|shape| *shape == pass.shape);
                let [slope, beside] = slopes_of(pass.slope, [true; 4]).map(outside);
                let mut slopes = vec![slope; number.unwrap() + 1];
                slopes.push(beside);
                let batch = (outside(input()), slopes);
                let captured = self.captured.as_mut().unwrap();
                let step = captured.step(self.scaled.rate, batch);
                step.unwrap_or_else(|error| panic!("{error}"));
                self.scaled.is_known = false;
            }
            _ => {
                self.release();
                self.scaled.act(action);
            }
        }
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        if is_end {
            self.release();
        }
        match self.captured {
            Some(_) => None,
            None => self.scaled.shown(is_end),
        }
    }

    fn record(&mut self) -> Option<Pack> {
        self.scaled.record()
    }
}
