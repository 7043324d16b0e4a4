//! The steps of single parameters, collected to be made together.

use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{DeviceScale, ScaleState, TensorList, UpdateRow, UpdateRule, update};
use std::sync::{Arc, Mutex};
use std::{cell::RefCell, mem::take};

use super::state::{Slot, Tensors, Time};
use burn_amp_core::internal::fused::{DeviceStep, Rehearses};
use burn_amp_core::internal::{AnyTensor, ParamTensor, during, is_half, locked};
use burn_amp_torch::internal::WithMaster;

/// Parameters that are stepped together: with more, the lists of their tensors leave the cache, and are new memory in each step. A multiple of the 28
/// that share a launch, and no power of two: the rows that follow the lists would have each of them grow.
const TOGETHER: usize = 252;

thread_local! {
    /// The pass of the module that is being stepped.
    static OPEN: RefCell<Option<Pass>> = const { RefCell::new(None) };

    /// The number of passes that this thread has made.
    #[cfg(any(test, feature = "counts"))]
    pub static PASSES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// One parameter's step: what the kernel reads, and where its results go.
pub(super) struct Job {
    pub(super) rule: UpdateRule,
    pub(super) row: UpdateRow,
    /// The steps before this one, as far as the host knows; with this one, once it is in a pass.
    pub(super) time: Time,
    pub(super) device: Device,
    /// Gradient, parameter, its master if it has one, states: handles, until they are in the list of a pass.
    pub(super) tensors: Vec<Tensor<1>>,
    pub(super) slot: Slot,
    /// The position of the gradient among all, once it is in a pass.
    pub(super) position: u32,
}

impl Job {
    /// Takes the results, which are the next of a list, and gives the parameter.
    fn take_from(self, list: &mut impl Iterator<Item = AnyTensor>) -> AnyTensor {
        let parameter = list.next();
        let parameter = parameter.expect("the kernel gives back what it was given");
        let mut kept = list.map(ParamTensor::from);
        // It is empty: the job has made it.
        let _ = self.slot.set(WithMaster {
            master: is_half(parameter.dtype()).then(|| kept.next()).flatten(),
            state: Tensors {
                time: self.time,
                tensors: kept.take(self.rule.states()).collect(),
            },
        });
        parameter
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
    /// The factors by which that step clips the gradients.
    clip: Option<Tensor<1>>,
    /// The factors of the gradients, in their order, where the host decides.
    factors: Vec<f32>,
}

/// The steps of one rule and device, at least one.
#[derive(Default)]
struct Group {
    list: TensorList,
    jobs: Vec<Job>,
}

impl Pass {
    /// The factor of the next gradient.
    fn factor(&self) -> f32 {
        self.factors.get(self.stepped.len()).copied().unwrap_or(1.0)
    }

    fn push(&mut self, mut job: Job) {
        let decides = self.decides.as_ref();
        let rehearses = decides.and_then(|step| Some(step.rehearsal().as_ref()?.what));
        job.time = match rehearses {
            // That of a recording counts as no step.
            Some(Rehearses::Run | Rehearses::Recording) => job.time.resolved(),
            _ => job.time.next(decides.map(|decides| decides.run.clone())),
        };
        job.row.fresh = (job.time.before == 0).into();
        job.row.scale = self.factor();
        job.position = self.stepped.len() as u32;
        self.stepped.push(None);
        // A replay has gradients of its own.
        let skipped = usize::from(rehearses == Some(Rehearses::Replay));
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
    fn step(&mut self, Group { list, jobs }: Group) {
        let call = self.calls;
        self.calls += 1;
        let rows: Vec<_> = jobs.iter().map(|job| job.row).collect();
        let time = |job: &Job| u32::try_from(job.time.total()).unwrap_or(u32::MAX);
        let times: Vec<_> = jobs.iter().map(time).collect();
        let gradients: Vec<_> = jobs.iter().map(|job| job.position).collect();
        let Job { rule, device, .. } = &jobs[0];
        let update = |list, sent| {
            let rows = match &self.decides {
                Some(decides) => decides.scale.decide(*rule, sent, self.clip.clone()),
                None => taken_on(device).decide(*rule, sent, None),
            };
            // Asked before: see `can_update`.
            update(*rule, list, rows)
                .unwrap_or_else(|error| panic!("the step of the optimizer: {error}"))
        };
        let mut rehearsal = self.decides.as_ref().map(|decides| decides.rehearsal());
        let list = match rehearsal.as_deref_mut().and_then(Option::as_mut) {
            None => update(list, DeviceScale::send(&rows, &times, &gradients, device)),
            Some(rehearsal) => {
                let sent = rehearsal.sent(call, &rows, &times, &gradients, device);
                match rehearsal.what {
                    Rehearses::Replay => list,
                    _ => {
                        let before = list.addresses();
                        let list = update(list, sent);
                        rehearsal.compare(&before, &list.addresses());
                        list
                    }
                }
            }
        };
        #[cfg(any(test, feature = "counts"))]
        PASSES.set(PASSES.get() + 1);
        let mut list = AnyTensor::all_of(list);
        for job in jobs {
            let position = job.position as usize;
            self.stepped[position] = Some(job.take_from(&mut list));
        }
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
    decides: Option<Arc<DeviceStep>>,
    factors: Vec<f32>,
    f: impl FnOnce() -> T,
) -> (T, Vec<Stepped>) {
    let clip = decides.as_ref().and_then(|decides| decides.clip.as_ref());
    let pass = Pass {
        clip: clip.and_then(|(table, status)| table.factors(status)),
        decides,
        factors,
        ..Pass::default()
    };
    let (value, pass) = during(&OPEN, pass, f);
    (value, pass.run())
}
