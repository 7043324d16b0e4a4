//! A `CapturedStep`. What it has no call for is done between two, with its parts.

use super::{Executor, fused, scaled::Scaled};
use crate::model::{Gain, INPUT, loss};
use crate::program::{Action, Pass, Program, Shape, Shown, Slope};
use burn::tensor::{Device, Tensor};
use burn_amp::optim::{CapturedStep, FusedAdam};
use burn_amp_tests::Pack;
use std::{cell::Cell, rc::Rc};

type Loss = Box<dyn FnMut(&Gain, Tensor<1>) -> Tensor<1>>;

pub struct Captured {
    scaled: Scaled<FusedAdam>,
    captured: Option<CapturedStep<Gain, Tensor<1>, FusedAdam, Loss>>,
    /// What the closure computes: Flex records nothing, so it is called in each step.
    pass: Rc<Cell<Pass>>,
}

impl Captured {
    pub fn new(program: &Program) -> Self {
        let pass = Pass {
            slope: Slope::Zero,
            shape: Shape::One,
        };
        let mut new = Self {
            scaled: Scaled::new(program, fused).in_flight(),
            captured: None,
            pass: Rc::new(Cell::new(pass)),
        };
        new.capture();
        new
    }

    fn capture(&mut self) {
        if let Some((model, optim)) = self.scaled.parts.take() {
            let (amp, pass) = (self.scaled.amp.clone(), self.pass.clone());
            let loss: Loss = Box::new(move |model, _| loss(&amp, model, pass.get()));
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

impl Executor for Captured {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                self.capture();
                self.pass.set(pass);
                let batch = Tensor::from_inner(Tensor::from_floats(INPUT, &Device::flex()));
                let captured = self.captured.as_mut().unwrap();
                captured.step(self.scaled.rate, batch).unwrap();
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

    fn record(&mut self) -> Pack {
        self.scaled.record()
    }
}
