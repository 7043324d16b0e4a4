//! The steps of single parameters, collected to be made together.

use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{
    ClipTable, DeviceScale, ScaleState, Status, TensorList, UpdateRow, UpdateRule, update,
};
use std::sync::{Arc, Mutex};
use std::{cell::RefCell, mem::take};

use super::state::{Slot, Tensors, Time};
use burn_amp_core::internal::fused::{DeviceStep, Rehearsal, Rehearses};
use burn_amp_core::internal::{AnyTensor, ParamTensor, during, locked};
use burn_amp_torch::internal::WithMaster;

/// Parameters that are stepped together: with more, the lists of their tensors leave the cache, and are new memory in each step.
const TOGETHER: usize = 512;

thread_local! {
    /// The pass of the module that is being stepped.
    static OPEN: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// The number of passes that this thread has made.
    pub static PASSES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// One parameter's step: what the kernel reads, and where its results go.
pub(super) struct Job {
    pub(super) rule: UpdateRule,
    pub(super) row: UpdateRow,
    /// The steps before this one, as far as the host knows; with this one, once it is in a pass.
    pub(super) time: Time,
    /// Set where there is no state yet.
    pub(super) fresh: bool,
    pub(super) device: Device,
    pub(super) has_master: bool,
    /// Gradient, parameter, its master if it has one, states: handles, until they are in the list of a pass.
    pub(super) tensors: Vec<Tensor<1>>,
    pub(super) slot: Slot,
}

impl Job {
    /// Takes the results, which are the next of a list, and gives the parameter.
    fn take_from(self, list: &mut impl Iterator<Item = AnyTensor>) -> AnyTensor {
        let parameter = list.next();
        let mut kept = list.map(ParamTensor::from);
        // It is empty: the job has made it.
        let _ = self.slot.set(WithMaster {
            master: self.has_master.then(|| kept.next()).flatten(),
            state: Tensors {
                time: self.time,
                tensors: kept.take(self.rule.states()).collect(),
            },
        });
        parameter.expect("the kernel gives back what it was given")
    }
}

/// The scale by which a device takes each step, for those that the host has decided. It is sent to a device once.
fn taken_on(device: &Device) -> DeviceScale {
    static SENT: Mutex<Vec<(Device, DeviceScale)>> = Mutex::new(Vec::new());
    let mut sent = locked(&SENT);
    if let Some((_, scale)) = sent.iter().find(|(other, _)| other == device) {
        return scale.clone();
    }
    let scale = ScaleState::default().upload(device);
    sent.push((device.clone(), scale.clone()));
    scale
}

/// A parameter after its step; none if it was stepped by itself.
pub(super) type Stepped = Option<AnyTensor>;

/// The steps of many parameters.
#[derive(Default)]
pub(super) struct Pass {
    groups: Vec<Group>,
    /// A place for each parameter so far; full where it has been stepped.
    stepped: Vec<Stepped>,
    /// The number of calls so far.
    calls: usize,
    /// The step of the device that decides it; none where the host has decided.
    decides: Option<Arc<DeviceStep>>,
    /// The factors of the gradients, in their order, where the host decides.
    factors: Vec<f32>,
}

/// The steps of one rule and device, at least one.
#[derive(Default)]
struct Group {
    list: TensorList,
    jobs: Vec<Job>,
    /// The positions of their gradients among all.
    gradients: Vec<u32>,
}

impl Pass {
    /// The factor of the next gradient.
    fn factor(&self) -> f32 {
        self.factors.get(self.stepped.len()).copied().unwrap_or(1.0)
    }

    fn rehearses(&self) -> Option<Rehearses> {
        let rehearsal = self.decides.as_ref()?.rehearsal();
        rehearsal.as_ref().map(|rehearsal| rehearsal.what)
    }

    /// The time after a step in this pass. That of a recording counts as no step.
    fn time(&self, before: Time, fresh: bool) -> Time {
        match self.rehearses() {
            Some(Rehearses::Run | Rehearses::Recording) => before.unchanged(fresh),
            _ => {
                let run = self.decides.as_ref().map(|decides| decides.run.clone());
                before.next(run, fresh)
            }
        }
    }

    fn push(&mut self, mut job: Job) {
        job.time = self.time(take(&mut job.time), job.fresh);
        job.row.fresh = job.time.fresh.into();
        job.row.scale = self.factor();
        // A replay has gradients of its own.
        let skipped = usize::from(self.rehearses() == Some(Rehearses::Replay));
        let position = self.stepped.len();
        self.stepped.push(None);
        let is_its = |of: &Job| of.rule == job.rule && of.device == job.device;
        let known = (self.groups.iter()).position(|group| is_its(&group.jobs[0]));
        let place = known.unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        for tensor in take(&mut job.tensors).into_iter().skip(skipped) {
            group.list.push(tensor);
        }
        group.jobs.push(job);
        group.gradients.push(position as u32);
        if group.jobs.len() == TOGETHER {
            let group = self.groups.swap_remove(place);
            self.step(group);
        }
    }

    /// Steps all of them, in one call a rule, a device and so many parameters. They come back in the order in which they came. Does not wait.
    fn run(mut self) -> Vec<Stepped> {
        for group in take(&mut self.groups) {
            self.step(group);
        }
        self.stepped
    }

    /// Steps those of a group, in one call.
    fn step(&mut self, mut group: Group) {
        let call = self.calls;
        self.calls += 1;
        let list = match &self.decides {
            Some(decides) => {
                let mut rehearsal = decides.rehearsal();
                let (scale, clip) = (&decides.scale, decides.clip.as_ref());
                group.step(scale, clip, call, rehearsal.as_mut())
            }
            None => group.step(&taken_on(&group.jobs[0].device), None, call, None),
        };
        #[cfg(any(test, feature = "counts"))]
        PASSES.set(PASSES.get() + 1);
        let mut list = AnyTensor::all_of(list);
        for (job, position) in group.jobs.into_iter().zip(group.gradients) {
            self.stepped[position as usize] = Some(job.take_from(&mut list));
        }
    }
}

impl Group {
    /// Steps its parameters. Gives them, their masters and states.
    fn step(
        &mut self,
        decides: &DeviceScale,
        clip: Option<&(ClipTable, Status)>,
        call: usize,
        rehearsal: Option<&mut Rehearsal>,
    ) -> TensorList {
        let (list, gradients) = (take(&mut self.list), &self.gradients);
        let rows: Vec<_> = self.jobs.iter().map(|job| job.row).collect();
        let time = |job: &Job| u32::try_from(job.time.given).unwrap_or(u32::MAX);
        let times: Vec<_> = self.jobs.iter().map(time).collect();
        let Job { rule, device, .. } = &self.jobs[0];
        let clip = clip.map(|(table, status)| (table, status));
        // Asked before: see `can_update`.
        let update = |list, sent| {
            update(*rule, list, decides.decide(*rule, sent, clip))
                .unwrap_or_else(|error| panic!("the step of the optimizer: {error}"))
        };
        let Some(rehearsal) = rehearsal else {
            return update(list, DeviceScale::send(&rows, &times, gradients, device));
        };
        let sent = rehearsal.sent(call, &rows, &times, gradients, device);
        if rehearsal.what == Rehearses::Replay {
            return list;
        }
        let before = list.addresses();
        let list = update(list, sent);
        rehearsal.compare(&before, &list.addresses());
        list
    }
}

/// Steps one parameter in the pass that is open; where none is, in one of its own.
pub(super) fn in_pass<S>(step: impl FnOnce() -> (Tensor<1>, S)) -> (Tensor<1>, S) {
    if OPEN.with_borrow(Option::is_some) {
        return step();
    }
    let ((tensor, state), mut stepped) = collected(None, Vec::new(), step);
    let stepped = stepped.pop().flatten();
    (stepped.map_or(tensor, AnyTensor::into_handle), state)
}

fn open<R>(change: impl FnOnce(&mut Pass) -> R) -> R {
    OPEN.with_borrow_mut(|open| change(open.as_mut().expect("`in_pass` has opened one")))
}

/// Adds a step to the pass. Gives what has the parameter's shape and takes no memory until the pass is made; the slot is full then.
pub(super) fn step(job: Job) -> Tensor<1> {
    let placeholder = job.tensors[0].clone();
    open(|pass| pass.push(job));
    placeholder
}

/// Notes that a parameter is stepped by itself. Gives what its gradient is multiplied by first.
pub(super) fn skip() -> f32 {
    open(|pass| {
        let factor = pass.factor();
        pass.stepped.push(None);
        factor
    })
}

/// Collects the steps of the parameters that `f` hands over, and makes them. `decides` decides whether they are taken; gradients are multiplied by
/// `factors` first, if there are any.
pub(super) fn collected<T>(
    decides: Option<&Arc<DeviceStep>>,
    factors: Vec<f32>,
    f: impl FnOnce() -> T,
) -> (T, Vec<Stepped>) {
    let pass = Pass {
        decides: decides.cloned(),
        factors,
        ..Pass::default()
    };
    let (value, pass) = during(&OPEN, pass, f);
    (value, pass.run())
}
