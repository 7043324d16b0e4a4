//! What a fused optimizer keeps of a parameter, and how it stands in a record. Knows no gradients.

use burn::optim::{Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, TensorData};
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
    /// The steps that the device was given; some of them may have been skipped.
    pub(super) given: usize,
    /// The run of the last step, and how many of it this has made.
    run: Option<(Arc<Run>, usize)>,
    /// Set where there is no state yet if all of them were.
    pub(super) fresh: bool,
}

impl Time {
    /// The steps that were taken, as soon as all are resolved.
    fn taken(&self) -> usize {
        let run = self.run.as_ref();
        let skips = run.map_or(0, |(run, steps)| run.skips(*steps));
        self.given.saturating_sub(skips)
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh && self.taken() == 0
    }

    /// The same time, of a step that is only recorded.
    pub(super) fn unchanged(self, fresh: bool) -> Self {
        Self {
            given: self.taken(),
            run: None,
            fresh,
        }
    }

    /// The time after one step more, in a run or in none.
    pub(super) fn next(self, run: Option<Arc<Run>>, fresh: bool) -> Self {
        match (self.run.as_ref(), run) {
            (Some((known, steps)), Some(run)) if Arc::ptr_eq(known, &run) => Self {
                given: self.given + 1,
                run: Some((run, steps + 1)),
                ..self
            },
            (_, run) => Self {
                given: self.taken() + 1,
                run: run.map(|run| (run, 1)),
                fresh,
            },
        }
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
        if kept.state.time.is_fresh() {
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

    /// Gives the state as Burn's optimizer takes it, in `dtype` and on `device`; none if there is none yet.
    pub(super) fn into_burns<C: FusedConfig<Optim = O>>(
        self,
        rule: &Rule,
        rank: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Option<BurnsState<O>> {
        let kept = self.into_tensors(rule, rank)?;
        let on = |tensor: ParamTensor| {
            let tensor = tensor.live(device)?.cast_to(dtype, device);
            Some(tensor.into_handle())
        };
        let time = kept.state.time;
        let tensors: Option<_> = kept.state.tensors.into_iter().map(on).collect();
        let state = match time.is_fresh() {
            true => None,
            false => C::state(time.taken(), tensors?),
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
        let mut fresh = WithMaster::<Tensors>::default();
        fresh.state.time.fresh = true;
        return Some(fresh);
    }
    let kept = WithMaster::unflatten(prefix, src, |prefix, src| {
        let mut state = Tensors::default();
        state.time.given = match rule.counter() {
            // The corrections take it as an `i32`.
            Some(counter) => {
                let time = i32::try_from(src.take_scalar(prefix, counter)?).ok()?;
                time.try_into().ok()?
            }
            // A step has made it, if nobody knows how many.
            None => 1,
        };
        for name in rule.names() {
            let data: TensorData = src.take_tensor(prefix, name)?;
            state.tensors.push(data.into());
        }
        Some(state)
    })?;
    let (tensors, master) = (&kept.state.tensors, &kept.master);
    let first = tensors.first().or(master.as_ref());
    let fits = |tensor: &ParamTensor| {
        tensor.rank() == rank && Some(tensor.shape()) == first.map(ParamTensor::shape)
    };
    let is_float = |tensor: &ParamTensor| matches!(tensor.dtype(), DType::F32 | DType::F64);
    let is_whole = tensors.iter().chain(master).all(fits)
        && tensors
            .iter()
            .all(|tensor| is_float(tensor) && tensor.dtype() == tensors[0].dtype());
    is_whole.then_some(kept)
}
