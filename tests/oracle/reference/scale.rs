//! The loss scale, and the factor of a region.

use super::gradients::{Cause, Evidence};
use crate::model::REGION_INTERVAL;

#[derive(Clone)]
pub struct Scale {
    pub loss: Factor,
    pub interval: u32,
    pub region: Factor,
    /// Whether a pass has opened the region in this iteration.
    pub is_region_open: bool,
    /// Who has stepped in the iteration, and what it was: an overflow before a finite step.
    stepped: Vec<u32>,
    seen: Evidence,
}

#[derive(Clone)]
pub struct Factor {
    pub value: f32,
    pub tracker: u32,
}

impl Factor {
    fn new(value: f32) -> Self {
        Self { value, tracker: 0 }
    }

    fn back_off(&mut self) {
        *self = Self::new(self.value / 2.0);
    }

    fn count_finite(&mut self, interval: u32) {
        self.tracker += 1;
        if self.tracker >= interval {
            *self = Self::new(self.value * 2.0);
        }
    }
}

impl Scale {
    pub fn new(scale: f32, interval: u32) -> Self {
        Self {
            loss: Factor::new(scale),
            interval,
            region: Factor::new(1.0),
            is_region_open: false,
            stepped: Vec::new(),
            seen: Evidence::Nothing,
        }
    }

    /// Moves once an iteration, which ends when all optimizers have stepped, or one steps again. An overflow lowers one of the two at once.
    pub fn advance(&mut self, seen: Evidence, optimizer: u32, optimizers: usize) {
        if seen == Evidence::Nothing {
            return;
        }
        if self.stepped.contains(&optimizer) {
            self.end_iteration();
        }
        self.stepped.push(optimizer);
        match (seen, self.seen) {
            (Evidence::Overflow(Cause::Loss) | Evidence::Rejected | Evidence::Nothing, _) => {}
            (_, Evidence::Overflow(_)) => {}
            (Evidence::Overflow(cause), _) => {
                match cause {
                    Cause::Region => self.region.back_off(),
                    _ => self.loss.back_off(),
                }
                self.seen = seen;
            }
            (Evidence::Zeros, Evidence::Finite) => {}
            (Evidence::Finite | Evidence::Zeros, _) => self.seen = seen,
        }
        if self.stepped.len() == optimizers {
            self.end_iteration();
        }
    }

    /// Zeros are no evidence for a region.
    fn end_iteration(&mut self) {
        self.stepped.clear();
        let seen = std::mem::replace(&mut self.seen, Evidence::Nothing);
        if matches!(seen, Evidence::Finite | Evidence::Zeros) {
            self.loss.count_finite(self.interval);
        }
        if std::mem::take(&mut self.is_region_open) && seen == Evidence::Finite {
            self.region.count_finite(REGION_INTERVAL);
        }
    }
}
