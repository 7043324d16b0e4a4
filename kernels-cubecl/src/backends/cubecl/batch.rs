//! Tensors that a job goes over, and the launches that it takes.

use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use burn_std::id::StreamId;
use cubecl::{client::Client, prelude::*, server::Handle};
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::{
    memory::Laid,
    plan::{Extent, Launch, Limits, Plan},
};

/// A tensor, and all that is read and written beside it: of one length, and in vectors of one width.
pub(super) type Item = Vec<Laid>;

/// Items, and the launches over all of them.
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) plan: Plan,
    table: Handle,
}

impl Batch {
    /// Of a list that is not empty; `rows` and `edge` are as for a [`Plan`].
    pub(super) fn new(items: Vec<Item>, limits: &Limits, rows: usize, edge: u32) -> Self {
        let extents: Vec<_> = items.iter().map(extent).collect();
        let plan = Plan::new(&extents, limits, rows, edge);
        let first = &items[0][0].tensor;
        let table = table(&first.client, &first.device, &plan.table);
        Self { items, plan, table }
    }

    /// One of the items of a launch.
    pub(super) fn item(&self, launch: &Launch) -> &Item {
        &self.items[launch.parts[0].tensor]
    }

    /// What a launch takes of its items at this place of each: as many bindings as its kernel is compiled for. Those that no item needs are
    /// small buffers of their own.
    pub(super) fn args(&self, launch: &Launch, place: usize) -> impl Iterator<Item = BufferArg> {
        let parts = launch.parts.iter();
        let args =
            parts.map(move |part| self.items[part.tensor][place].part(part.first, part.values));
        let like = &self.item(launch)[0].tensor;
        let spares = (launch.parts.len()..launch.slots).map(|_| arg(&floats(like, [64])));
        args.chain(spares)
    }

    /// The table of all launches.
    pub(super) fn table(&self) -> BufferArg {
        // SAFETY: the length is that of the buffer.
        unsafe { BufferArg::from_raw_parts(self.table.clone(), self.plan.table.len()) }
    }
}

/// Items share a launch whose tensors have the same dtypes and width of vectors, and are all padded or none.
fn extent(item: &Item) -> Extent<impl Ord + use<>> {
    let dtypes = item.iter().map(|laid| laid.tensor.dtype.name());
    let dtypes: Vec<_> = dtypes.collect();
    let Laid {
        span,
        vector,
        padding,
        ..
    } = item[0];
    Extent {
        kind: (dtypes, vector, padding.is_some()),
        buffers: item.len(),
        span,
        vector,
        padding,
    }
}

/// A plan's table on the device: from step to step the same, so it is sent once.
fn table(client: &Client, device: &CubeDevice, table: &[u32]) -> Handle {
    type Sent = (CubeDevice, StreamId, Vec<u32>, Handle);
    /// Those that were used last, the latest at the end.
    static SENT: Mutex<VecDeque<Sent>> = Mutex::new(VecDeque::new());
    /// The passes of a few models, or of one in a few ways.
    const MAX_SENT: usize = 32;

    let stream = StreamId::current();
    let mut sent = SENT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |sent: &Sent| sent.0 == *device && sent.1 == stream && sent.2 == table;
    let found = sent.iter().position(is_it).and_then(|at| sent.remove(at));
    let found = found.unwrap_or_else(|| {
        let handle = client.create_from_slice(u32::as_bytes(table));
        (device.clone(), stream, table.to_vec(), handle)
    });
    let handle = found.3.clone();
    sent.push_back(found);
    if sent.len() > MAX_SENT {
        sent.pop_front();
    }
    handle
}

/// New floats, or other words, on the device of a tensor.
pub(super) fn floats(like: &CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    let (client, device, shape) = (like.client.clone(), like.device.clone(), shape.into());
    let handle = client.empty(shape.num_elements() * DType::F32.size());
    CubeTensor::new_contiguous(client, device, shape, handle, DType::F32)
}

/// A tensor as kernels take it.
pub(super) fn arg(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// Tensors as a kernel takes them that may do without.
pub(super) fn args<A: FromIterator<BufferArg>>(tensors: impl IntoIterator<Item = CubeTensor>) -> A {
    let tensors = tensors.into_iter();
    tensors.map(CubeTensor::into_buffer_arg).collect()
}

/// Cubes in a row.
pub(super) fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}
