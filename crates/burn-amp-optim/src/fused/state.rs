//! What a fused optimizer keeps of a parameter, and how it stands in a record. Knows no gradients.

use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType};
use burn_pack::Scalar;
use std::sync::{Arc, OnceLock};

use super::rule::{FusedConfig, Rule};
use crate::PANICKED;
use burn_amp_core::internal::ParamTensor;
use burn_amp_core::internal::fused::{FRESH, Run};
use burn_amp_torch::internal::{Masters, WithMaster};

/// The state of Burn's optimizer, with a master.
pub(super) type BurnsState<O> = <Masters<O> as Optimizer>::State<1>;

/// The state of a parameter of any rank.
#[derive(Clone)]
pub(super) enum State<O: Optimizer> {
    /// The state as kernels take it, or as it was loaded.
    Tensors(Slot),
    /// The state of Burn's optimizer, which has stepped handles where there is no kernel, and its dtype.
    Burns(FloatDType, Box<BurnsState<O>>),
}

/// The state that kernels keep, beside the master.
#[derive(Clone, Default)]
pub(super) struct Tensors {
    pub(super) time: Time,
    /// The tensors that the rule names; none before the first step.
    pub(super) tensors: Vec<ParamTensor>,
}

/// The number of steps that were taken.
#[derive(Clone, Default)]
pub(super) struct Time {
    /// The steps that were taken before those of the run: if none was, a step begins the state anew.
    pub(super) before: usize,
    /// The steps since, of which some may have been skipped if a device decides them.
    steps: usize,
    /// The run in which a device decides them; none where the host has.
    run: Option<Arc<Run>>,
}

impl Time {
    fn of(before: usize) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// The steps that were taken, as soon as all are resolved.
    fn taken(&self) -> usize {
        let run = self.run.as_ref();
        self.total() - run.map_or(0, |run| run.skips(self.steps))
    }

    /// The steps that the device was given; some of them may have been skipped.
    pub(super) fn total(&self) -> usize {
        self.before + self.steps
    }

    /// The same time, outside of any run: that of a step that is only recorded, too.
    pub(super) fn resolved(self) -> Self {
        Self::of(self.taken())
    }

    /// The time after one step more, in a run or in none.
    pub(super) fn next(self, run: Option<Arc<Run>>) -> Self {
        let goes_on = match (&self.run, &run) {
            (Some(known), Some(run)) => Arc::ptr_eq(known, run),
            _ => false,
        };
        let start = if goes_on { self } else { self.resolved() };
        let (before, steps) = (start.before, start.steps + 1);
        Self { before, steps, run }
    }
}

/// A place for a state, which the pass fills. Full from the end of a step to the next; a clone takes handles out of it.
pub(super) type Slot = Arc<OnceLock<WithMaster<Tensors>>>;

impl<O: Optimizer> State<O> {
    pub(super) fn flatten(&self, rule: &Rule, prefix: &str, out: &mut StateSink) {
        let kept = match self {
            Self::Burns(_, kept) => return kept.state_flatten(prefix, out),
            Self::Tensors(slot) => slot.get().expect(PANICKED),
        };
        if kept.state.time.taken() == 0 {
            if !kept.shows_master(prefix) {
                out.push_scalar(prefix, FRESH, Scalar::from(1u64));
            }
            return;
        }
        kept.flatten(prefix, out, |state, prefix, out| {
            if let Some(counter) = rule.counter() {
                out.push_scalar(prefix, counter, Scalar::from(state.time.taken()));
            }
            for (name, tensor) in rule.names().iter().zip(&state.tensors) {
                out.push_tensor(prefix, name, tensor.to_data());
            }
        });
    }

    /// Gives the state as kernels take it, by a record if it was Burn's, which Burn shows to records alone. That waits for the device.
    pub(super) fn into_tensors(self, rule: &Rule, rank: usize) -> Option<WithMaster<Tensors>> {
        match self {
            Self::Tensors(slot) => Some(Arc::unwrap_or_clone(slot).into_inner().expect(PANICKED)),
            Self::Burns(_, kept) => {
                let mut sink = StateSink::default();
                kept.state_flatten("", &mut sink);
                let mut source = StateSource::new(sink.scalars.into_iter().collect());
                for (name, data) in sink.tensors {
                    source.insert_tensor(name, data);
                }
                unflatten(rule, rank, "", &mut source)
            }
        }
    }

    /// Gives the state as Burn's optimizer takes it, for parameters that it steps in `dtype` on `device`; none if there is none yet.
    pub(super) fn into_burns<C: FusedConfig<Optim = O>>(
        self,
        rule: &Rule,
        rank: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Option<BurnsState<O>> {
        let kept = match self {
            Self::Burns(known, kept) if known == dtype => {
                return Some(Masters::<O>::to_device::<1>(*kept, device));
            }
            other => other.into_tensors(rule, rank)?,
        };
        let on = |tensor: ParamTensor| Some(tensor.live(device)?.cast(dtype).into_handle());
        let tensors: Option<_> = kept.state.tensors.into_iter().map(on).collect();
        let state = match kept.state.time.taken() {
            0 => None,
            taken => C::state(taken, tensors?),
        };
        Some(WithMaster {
            master: kept.master,
            state,
        })
    }
}

/// Reads a state; none if a tensor or the counter is missing, or cannot be of this rule: Burn's loader then leaves it, and ours refuses the record.
pub(super) fn unflatten(
    rule: &Rule,
    rank: usize,
    prefix: &str,
    src: &mut StateSource,
) -> Option<WithMaster<Tensors>> {
    if src.take_scalar(prefix, FRESH).is_some() {
        return Some(WithMaster::default());
    }
    let kept = WithMaster::unflatten(prefix, src, |prefix, src| {
        let taken = match rule.counter() {
            // The corrections take it as an `i32`.
            Some(counter) => {
                let time = i32::try_from(src.take_scalar(prefix, counter)?).ok()?;
                time.try_into().ok()?
            }
            // A step has made it, if nobody knows how many.
            None => 1,
        };
        let tensor = |name: &&str| Some(src.take_tensor(prefix, name)?.into());
        let tensors = rule.names().iter().map(tensor).collect::<Option<_>>()?;
        let time = Time::of(taken);
        Some(Tensors { time, tensors })
    })?;
    let tensors = &kept.state.tensors;
    let all = || tensors.iter().chain(&kept.master);
    let shape = all().next().map(ParamTensor::shape);
    let dtype = tensors.first().map(ParamTensor::dtype);
    let is_whole = matches!(dtype, None | Some(DType::F32 | DType::F64))
        && all().all(|tensor| tensor.rank() == rank && Some(tensor.shape()) == shape)
        && tensors.iter().all(|tensor| Some(tensor.dtype()) == dtype);
    is_whole.then_some(kept)
}
