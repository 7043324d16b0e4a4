//! The steps of single parameters, collected to be made in one pass.

use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{
    ClipTable, DeviceScale, ScaleState, Status, TensorList, UpdateRow, UpdateRule, update,
};
use std::{
    any::Any,
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    ahead::{Ahead, Run},
    rehearsal::{Rehearsal, Rehearses},
};

thread_local! {
    /// The pass of the module that is being stepped: Burn hands parameters over one by one.
    static OPEN: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

#[cfg(test)]
thread_local! {
    /// How many passes this thread has made.
    pub(crate) static PASSES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// One parameter's step: what the kernel reads, and where its results go.
pub(super) struct Job<const D: usize> {
    pub(super) rule: UpdateRule,
    pub(super) row: UpdateRow,
    /// Steps up to this one, as far as the host knows.
    pub(super) time: usize,
    pub(super) device: Device,
    pub(super) idle: Arc<Idle>,
    /// Gradient, parameter, its master if it has one, states.
    pub(super) tensors: Vec<Tensor<D>>,
    /// Takes master and states over.
    pub(super) keep: Box<dyn FnOnce(Vec<Tensor<D>>)>,
}

/// What decides the steps that the host has decided, one for each device: sent once.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<(Device, DeviceScale)>>);

impl Idle {
    fn on(&self, device: &Device) -> DeviceScale {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, scale)) = sent.iter().find(|(other, _)| other == device) {
            return scale.clone();
        }
        let scale = ScaleState::default().upload(device);
        sent.push((device.clone(), scale.clone()));
        scale
    }
}

/// A parameter after its step: a `Tensor<D>`; none if it was stepped by itself.
pub(super) type Stepped = Option<Box<dyn Any>>;

type End = Box<dyn FnOnce(&mut TensorList) -> Box<dyn Any>>;

/// The steps of many parameters.
#[derive(Default)]
pub(super) struct Pass {
    groups: Vec<Group>,
    len: usize,
    /// What decides it on the device.
    verdict: Option<Arc<Ahead>>,
    /// What gradients are multiplied by, in their order, where the host decides.
    factors: Vec<f32>,
}

struct Group {
    rule: UpdateRule,
    device: Device,
    idle: Arc<Idle>,
    list: TensorList,
    rows: Vec<UpdateRow>,
    times: Vec<u32>,
    /// Where each one's gradient stands among all.
    gradients: Vec<u32>,
    /// Where each stands among all parameters, and how its results leave the list.
    ends: Vec<(usize, End)>,
}

impl Pass {
    /// What the next gradient is multiplied by.
    fn factor(&self) -> f32 {
        self.factors.get(self.len).copied().unwrap_or(1.0)
    }

    fn push<const D: usize>(&mut self, job: Job<D>) {
        let factor = self.factor();
        let place = (self.groups.iter())
            .position(|group| group.rule == job.rule && group.device == job.device);
        let place = place.unwrap_or_else(|| {
            self.groups.push(Group {
                rule: job.rule,
                device: job.device,
                idle: job.idle,
                list: TensorList::new(),
                rows: Vec::new(),
                times: Vec::new(),
                gradients: Vec::new(),
                ends: Vec::new(),
            });
            self.groups.len() - 1
        });
        let group = &mut self.groups[place];
        let results = job.tensors.len() - 1;
        // A replay has gradients of its own.
        let is_replay = |verdict: &Arc<Ahead>| verdict.rehearses() == Some(Rehearses::Replay);
        let skipped = usize::from(self.verdict.as_ref().is_some_and(is_replay));
        (job.tensors.into_iter())
            .skip(skipped)
            .for_each(|tensor| group.list.push(tensor));
        group.rows.push(UpdateRow {
            scale: factor,
            ..job.row
        });
        group.gradients.push(self.len as u32);
        group
            .times
            .push(u32::try_from(job.time).unwrap_or(u32::MAX));
        let keep = job.keep;
        let end = move |list: &mut TensorList| -> Box<dyn Any> {
            let mut taken: Vec<_> = (0..results).map_while(|_| list.pop::<D>()).collect();
            let parameter = taken
                .pop()
                .expect("the kernel gives back what it was given");
            taken.reverse();
            keep(taken);
            Box::new(parameter)
        };
        group.ends.push((self.len, Box::new(end)));
        self.len += 1;
    }

    /// Steps all of them, in one call a rule and device. They come back in the order in which they came. Does not wait.
    fn run(self) -> Vec<Stepped> {
        let mut stepped: Vec<Stepped> = (0..self.len).map(|_| None).collect();
        for (call, mut group) in self.groups.into_iter().enumerate() {
            let mut list = match &self.verdict {
                Some(verdict) => {
                    let mut rehearsal = verdict.rehearsal();
                    group.step(verdict.scale(), verdict.clip(), call, rehearsal.as_mut())
                }
                None => {
                    let idle = group.idle.on(&group.device);
                    group.step(&idle, None, call, None)
                }
            };
            #[cfg(test)]
            PASSES.set(PASSES.get() + 1);
            for (position, end) in group.ends.into_iter().rev() {
                stepped[position] = Some(end(&mut list));
            }
        }
        stepped
    }
}

impl Group {
    /// What comes of its parameters, their masters and states.
    fn step(
        &mut self,
        decides: &DeviceScale,
        clip: Option<(&ClipTable, &Status)>,
        call: usize,
        rehearsal: Option<&mut Rehearsal>,
    ) -> TensorList {
        let list = std::mem::take(&mut self.list);
        let (rows, times, gradients) = (&self.rows, &self.times, &self.gradients);
        // Asked before: see `can_update`.
        let update = |list, sent| {
            update(self.rule, list, decides.decide(self.rule, sent, clip))
                .unwrap_or_else(|error| panic!("the step of the optimizer: {error}"))
        };
        let Some(rehearsal) = rehearsal else {
            return update(
                list,
                DeviceScale::send(rows, times, gradients, &self.device),
            );
        };
        let sent = rehearsal.sent(call, rows, times, gradients, &self.device);
        if rehearsal.is_replay() {
            return list;
        }
        let before = list.places();
        let list = update(list, sent);
        rehearsal.compare(&before, &list.places());
        list
    }
}

/// Makes a step at once, unless a pass is open: none is given back then.
pub(super) fn step<const D: usize>(job: Job<D>) -> Option<Tensor<D>> {
    let job = OPEN.with_borrow_mut(|open| match open {
        Some(pass) => {
            pass.push(job);
            None
        }
        None => Some(job),
    })?;
    let mut pass = Pass::default();
    pass.push(job);
    let stepped = pass.run().pop().flatten();
    Some(tensor(
        stepped.expect("one parameter comes back for one that went in"),
    ))
}

/// A parameter after its step.
pub(super) fn tensor<const D: usize>(stepped: Box<dyn Any>) -> Tensor<D> {
    *stepped.downcast().expect("a parameter keeps its rank")
}

/// Notes that a parameter is stepped by itself. Gives what its gradient is multiplied by first.
pub(super) fn skip() -> f32 {
    OPEN.with_borrow_mut(|open| match open {
        Some(pass) => {
            let factor = pass.factor();
            pass.len += 1;
            factor
        }
        None => 1.0,
    })
}

/// Whether the pass that is open counts as no step: it is that of a recording.
pub(super) fn is_rehearsed() -> bool {
    OPEN.with_borrow(|open| {
        let verdict = open.as_ref().and_then(|pass| pass.verdict.as_ref());
        let what = verdict.and_then(|verdict| verdict.rehearses());
        matches!(what, Some(Rehearses::Run | Rehearses::Recording))
    })
}

/// What counts the skips of the pass that is open, if the device decides it.
pub(super) fn run() -> Option<Arc<Run>> {
    OPEN.with_borrow(|open| {
        let verdict = open.as_ref().and_then(|pass| pass.verdict.as_ref());
        verdict.map(|verdict| verdict.run().clone())
    })
}

/// Collects the steps of the parameters that `f` hands over, and makes them. `verdict` decides whether they are taken; gradients are multiplied by
/// `factors` first, if there are any.
pub(super) fn collected<T>(
    verdict: Option<&Arc<Ahead>>,
    factors: Vec<f32>,
    f: impl FnOnce() -> T,
) -> (T, Vec<Stepped>) {
    /// A pass must not stay open when `f` panics: later steps would wait in it.
    struct Close;

    impl Drop for Close {
        fn drop(&mut self) {
            OPEN.set(None);
        }
    }

    OPEN.set(Some(Pass {
        verdict: verdict.cloned(),
        factors,
        ..Pass::default()
    }));
    let close = Close;
    let value = f();
    let pass = OPEN.take().unwrap_or_default();
    drop(close);
    (value, pass.run())
}
