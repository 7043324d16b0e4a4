//! The loss scale, and the factor of a region.

use super::gradients::{Cause, Evidence};
use crate::model::REGION_INTERVAL;

const REGION: Settings = Settings {
    interval: REGION_INTERVAL,
    growth: 2.0,
    backoff: 0.5,
};

#[derive(Clone)]
pub struct Scale {
    pub loss: Factor,
    pub settings: Settings,
    pub region: Factor,
    /// Whether a pass has opened the region in this iteration.
    pub is_region_open: bool,
    /// Who has stepped in the iteration, and what it was: an overflow before a finite step.
    stepped: Vec<u32>,
    seen: Evidence,
}

/// How a factor moves.
#[derive(Clone, Copy, PartialEq)]
pub struct Settings {
    pub interval: u32,
    pub growth: f32,
    pub backoff: f32,
}

impl Settings {
    pub fn new(interval: u32) -> Self {
        Self {
            interval,
            growth: 2.0,
            backoff: 0.5,
        }
    }
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

    fn back_off(&mut self, settings: &Settings) {
        *self = Self::new(self.value * settings.backoff);
    }

    fn count_finite(&mut self, settings: &Settings) {
        self.tracker += 1;
        if self.tracker >= settings.interval {
            *self = Self::new(self.value * settings.growth);
        }
    }
}

impl Scale {
    pub fn new(scale: f32, interval: u32) -> Self {
        Self {
            loss: Factor::new(scale),
            settings: Settings::new(interval),
            region: Factor::new(1.0),
            is_region_open: false,
            stepped: Vec::new(),
            seen: Evidence::Nothing,
        }
    }

    /// Moves once an iteration, which ends when all optimizers have stepped, or one steps again. An overflow lowers one of the two at once.
    pub fn advance(
        &mut self,
        seen: Evidence,
        optimizer: u32,
        mut others: impl Iterator<Item = u32>,
    ) {
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
                    Cause::Region => self.region.back_off(&REGION),
                    _ => self.loss.back_off(&self.settings),
                }
                self.seen = seen;
            }
            (Evidence::Zeros, Evidence::Finite) => {}
            (Evidence::Finite | Evidence::Zeros, _) => self.seen = seen,
        }
        if others.all(|other| self.stepped.contains(&other)) {
            self.end_iteration();
        }
    }

    /// Zeros are no evidence for a region.
    fn end_iteration(&mut self) {
        self.stepped.clear();
        let seen = std::mem::replace(&mut self.seen, Evidence::Nothing);
        if matches!(seen, Evidence::Finite | Evidence::Zeros) {
            self.loss.count_finite(&self.settings);
        }
        if std::mem::take(&mut self.is_region_open) && seen == Evidence::Finite {
            self.region.count_finite(&REGION);
        }
    }
}
