//! The ways to train, and what each of them cannot do.

mod by_hand;
mod captured;
mod pipelined;
mod ranks;
mod scaled;

use crate::model::{Gain, Judge, adam, burns, sgd};
use crate::program::{Action, Counts, Hooks, Need, Program, Shown};
use burn_amp::optim::{Fused, ModuleOptim};
use burn_amp::{Ema, MixedPrecision, ScaledOptimizer, StepCounters, optim::Scaler};
use burn_amp_tests::{Pack, Waited, on_flex};
use by_hand::ByHand;
use captured::Captured;
use pipelined::Pipelined;
use ranks::Ranks;
use scaled::Scaled;

/// A run under way.
pub trait Executor {
    fn act(&mut self, action: &Action);

    /// What it shows; none if it would have to wait for that, before the end of the run.
    fn shown(&mut self, is_end: bool) -> Option<Shown>;

    /// Its record at the end, or at least that of its optimizer; none if it gives none.
    fn record(&mut self) -> Option<Pack>;
}

/// A way to train.
#[derive(Clone)]
pub struct Way {
    pub name: &'static str,
    /// It has no call for these.
    pub lacks: &'static [Need],
    /// It answers these with an error.
    pub refuses: &'static [Need],
    /// It can, and other tests try it.
    pub elsewhere: &'static [Need],
    /// Whether a device that can records its steps: of one scope alone, and of nothing before it.
    pub is_recorded: bool,
    /// Whether it computes with the parameters and the scale of the update before.
    pub is_stale: bool,
    /// In how many ranks it runs, each with its part of every batch.
    pub ranks: usize,
    /// Whether all of its record is that of the others, and not the optimizer's state alone.
    pub same_record: bool,
    pub make: fn(&Program) -> Box<dyn Executor>,
}

impl Way {
    /// Says whether the device runs it at all: several threads on one are a matter of Burn's.
    pub fn is_here(&self) -> bool {
        self.ranks == 1 || on_flex()
    }

    pub fn can(&self, need: Need) -> bool {
        let is_other = matches!(need, Need::Scopes | Need::Untested);
        let is_refused = self.is_recorded && !on_flex() && is_other;
        let are_not = [self.lacks, self.refuses, self.elsewhere];
        !is_refused && are_not.iter().all(|needs| !needs.contains(&need))
    }
}

const ALL: Way = Way {
    name: "host",
    lacks: &[Need::Replace],
    refuses: &[],
    elsewhere: &[],
    is_recorded: false,
    is_stale: false,
    ranks: 1,
    same_record: true,
    make: |program| Box::new(Scaled::new(program, burns)),
};

/// Gradients and settings are on another thread.
const PIPELINED: Way = Way {
    name: "pipelined",
    lacks: &[
        Need::Clear,
        Need::Discard,
        Need::Unscale,
        Need::Clone,
        Need::Several,
    ],
    // The training would have to wait for the test of each micro-batch.
    refuses: &[Need::Dropping],
    make: |program| Box::new(Pipelined::new(program, true)),
    ..ALL
};

/// Threads, each of which is a rank of a training in several processes.
const RANKS: Way = Way {
    name: "ranks",
    ranks: 2,
    make: |program| Box::new(Ranks::new(program, 2, burns)),
    ..ALL
};

/// Burn's `Learner`, with one batch for each pass. Tests of its own have it: Burn's training is large.
pub const LEARNER: Way = Way {
    name: "`Learner`",
    lacks: &[
        Need::Flush,
        Need::Clear,
        Need::Discard,
        Need::Unscale,
        Need::Clone,
        Need::Setting,
        Need::Replace,
        Need::Several,
    ],
    refuses: &[Need::Dropping],
    // By Burn's `grads_accumulation`, and by checkpoints.
    elsewhere: &[Need::Accumulation, Need::Record],
    same_record: false,
    make: |_| unreachable!("its tests make it"),
    ..ALL
};

pub static WAYS: [Way; 9] = [
    ALL,
    Way {
        name: "waited",
        make: |program| match on_flex() {
            true => Box::new(Scaled::new(program, || Waited(Fused::new(adam())))),
            false => Box::new(Scaled::new(program, || Waited(Fused::new(sgd())))),
        },
        ..ALL
    },
    Way {
        name: "in flight",
        make: |program| match on_flex() {
            true => Box::new(Scaled::new(program, || Fused::new(adam())).in_flight()),
            false => Box::new(Scaled::new(program, || Fused::new(sgd())).in_flight()),
        },
        ..ALL
    },
    Way {
        name: "captured",
        lacks: &[Need::Unscale, Need::Replace],
        // The host decides these.
        refuses: &[
            Need::Accumulation,
            Need::Dropping,
            Need::Hook,
            Need::Average,
            Need::Several,
            Need::Region,
        ],
        is_recorded: true,
        make: |program| match on_flex() {
            true => Box::new(Captured::new(program, || Fused::new(adam()))),
            false => Box::new(Captured::new(program, || Fused::new(sgd()))),
        },
        ..ALL
    },
    Way {
        name: "by hand",
        // Nothing counts what is unscaled and dropped.
        lacks: &[Need::Hook, Need::Unscale, Need::Several],
        same_record: false,
        make: |program| Box::new(ByHand::new(program)),
        ..ALL
    },
    PIPELINED,
    Way {
        name: "stale",
        is_stale: true,
        same_record: false,
        make: |program| Box::new(Pipelined::new(program, false)),
        ..PIPELINED
    },
    RANKS,
    Way {
        ranks: 3,
        make: |program| Box::new(Ranks::new(program, 3, || Fused::new(adam()))),
        ..RANKS
    },
];

/// A record as it is of all ranks: why a window in it has overflowed, each says of its own part of the batch.
fn alike(mut record: Pack) -> Pack {
    let mut index = record.take_index().unwrap();
    (record.scalars).retain(|name, _| !name.ends_with(".checksum"));
    if let Some(window) = index.pointer_mut("/states/window") {
        window.as_object_mut().unwrap().remove("overflow");
    }
    record.with_index(&index)
}

fn counts(of: StepCounters) -> Counts {
    Counts {
        steps: of.steps(),
        skipped: of.skipped(),
        bad_losses: of.bad_losses(),
        skips_in_a_row: of.consecutive_skips(),
        discarded: of.discarded(),
        dropped: of.dropped(),
        rejected: of.guarded(),
    }
}

/// Without the hooks.
pub fn scaler_shown(model: &Gain, scaler: &Scaler, amp: &MixedPrecision) -> Shown {
    Shown {
        region: amp.regions().first().map_or(1.0, |(_, factor)| *factor),
        parameters: model.bits(),
        scale: scaler.loss_scale(),
        tracker: scaler.growth_tracker(),
        counters: counts(scaler.counters()),
        outcome: scaler.last_outcome(),
        hooks: None,
    }
}

fn optim_shown<O: ModuleOptim>(
    model: &Gain,
    optim: &ScaledOptimizer<O>,
    amp: &MixedPrecision,
) -> Shown {
    let judged = optim.hook::<Judge>().map_or(0, |hook| hook.judged);
    let average = optim.ema().and_then(|ema| average(ema, model));
    Shown {
        hooks: Some(Hooks { judged, average }),
        ..scaler_shown(model, optim.scaler(), amp)
    }
}

pub fn average(ema: &Ema, model: &Gain) -> Option<Vec<u32>> {
    let average = ema.get(&model.w)?.to_data();
    Some(average.iter::<f32>().map(f32::to_bits).collect())
}
