//! What is kept for a client from step to step: plans, with their tables on the device, and buffers for bindings that no tensor needs.

use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use burn_std::id::StreamId;
use cubecl::{client::Client, prelude::*, server::Handle};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::plan::{Extent, Limits, Plan};

/// Bytes of a spare buffer.
pub(super) const SPARE: usize = 256;
/// Clients, each a device and a stream of it.
const MAX_CLIENTS: usize = 32;
/// Plans of a client: the passes of a few models, or of one in a few ways. A large one takes some for each pass.
const MAX_PLANS: usize = 256;

/// What a plan is made of. The longest is last: it is compared where all else is the same.
#[derive(PartialEq)]
pub(super) struct Key {
    pub(super) limits: Limits,
    pub(super) measures: bool,
    pub(super) edge: u32,
    pub(super) extents: Vec<Extent>,
}

pub(super) struct Planned {
    key: Key,
    pub(super) plan: Plan,
    /// The plan's table on the device: from step to step the same, so it is sent once.
    pub(super) table: Handle,
}

/// What one client has.
#[derive(Default)]
pub(super) struct Kept {
    plans: VecDeque<Arc<Planned>>,
    spares: Vec<Handle>,
}

impl Kept {
    /// Calls `f` with what the client of a tensor has, and with that client. Other clients need not wait for it.
    pub(super) fn of<R>(tensor: &CubeTensor, f: impl FnOnce(&mut Self, &Client) -> R) -> R {
        type Owned = ((CubeDevice, StreamId), Arc<Mutex<Kept>>);
        static KEPT: Mutex<VecDeque<Owned>> = Mutex::new(VecDeque::new());

        let client = (tensor.device.clone(), StreamId::current());
        let (_, kept) = {
            let mut all = lock(&KEPT);
            let at = all.iter().position(|(other, _)| *other == client);
            used(&mut all, MAX_CLIENTS, at, || (client, Arc::default()))
        };
        f(&mut lock(&kept), &tensor.client)
    }

    /// The plan of this key.
    pub(super) fn planned(&mut self, key: Key, client: &Client) -> Arc<Planned> {
        let at = self.plans.iter().position(|kept| kept.key == key);
        let make = || {
            let plan = Plan::new(&key.extents, &key.limits, key.measures, key.edge);
            let table = client.create_from_slice(u32::as_bytes(&plan.table));
            Arc::new(Planned { key, plan, table })
        };
        used(&mut self.plans, MAX_PLANS, at, make)
    }

    /// So many spare buffers.
    pub(super) fn spares(&mut self, count: usize, client: &Client) -> Vec<Handle> {
        let missing = count.saturating_sub(self.spares.len());
        let new = (0..missing).map(|_| client.empty(SPARE));
        self.spares.extend(new);
        self.spares[..count].to_vec()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of those that were used last, the latest of them at the end: it becomes that, and is made if it is not there.
fn used<T: Clone>(
    all: &mut VecDeque<T>,
    most: usize,
    at: Option<usize>,
    make: impl FnOnce() -> T,
) -> T {
    let one = at.and_then(|at| all.remove(at)).unwrap_or_else(make);
    all.push_back(one.clone());
    if all.len() > most {
        all.pop_front();
    }
    one
}
