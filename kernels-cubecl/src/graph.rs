use burn::backend::{Backend, BackendTypes, Dispatch};
use burn::tensor::Device;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a device was given to do, recorded to be done again in one call: a CUDA or HIP graph, or the list of commands that CubeCL keeps on
/// WGPU. Dropping it frees the memory that it holds.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    graph: <Dispatch as BackendTypes>::GraphPrimitive,
}

/// A device whose memory stays where it is, on the calling thread: for the runs before a recording, which take what it will need. Dropping it
/// ends that.
#[derive(Debug)]
pub struct Preparation(Option<Device>);

impl Drop for Preparation {
    fn drop(&mut self) {
        if let Some(device) = &self.0 {
            // An error says that there is nothing to end.
            let _ = Dispatch::graph_stop_capture(device.as_dispatch());
        }
    }
}

impl Preparation {
    /// Prepares a device. Hands over what it has queued, and does not wait for it.
    ///
    /// # Errors
    ///
    /// What the device says, if a recording is under way there.
    pub fn new(device: &Device) -> Result<Self, String> {
        Dispatch::graph_prepare(device.as_dispatch()).map_err(|error| error.to_string())?;
        Ok(Self(Some(device.clone())))
    }

    /// Records what `work` launches, on the calling thread: none of it is done. `work` has run some times before, so that kernels are
    /// compiled and memory is there.
    ///
    /// # Errors
    ///
    /// What the device says, or what `work` panics with: where it reads a tensor, or sends one to the device. What it would have written
    /// cannot be read then.
    pub fn record<T>(mut self, work: impl FnOnce() -> T) -> Result<(Graph, T), String> {
        let device = self.0.take().expect("a device that was prepared");
        let place = device.as_dispatch();
        Dispatch::graph_start_capture(place).map_err(|error| error.to_string())?;
        let done = catch_unwind(AssertUnwindSafe(work));
        let graph = Dispatch::graph_stop_capture(place);
        let value = done.map_err(|panic| panic_message(&*panic).to_string())?;
        let graph = graph.map_err(|error| error.to_string())?;
        Ok((Graph { device, graph }, value))
    }
}

impl Graph {
    /// Whether a device can record. Hands over what it has queued, and does not wait for it.
    pub fn is_supported(device: &Device) -> bool {
        Preparation::new(device).is_ok_and(|prepared| prepared.record(|| ()).is_ok())
    }

    /// Does what was recorded, behind all that the device was given before. Does not wait for it.
    ///
    /// # Errors
    ///
    /// What the device says.
    ///
    /// # Safety
    ///
    /// Tensors that the work has read or written, and that it has not made itself, are alive where they were, and no other thread uses
    /// them meanwhile. It is called on the thread that has recorded.
    pub unsafe fn replay(&self) -> Result<(), String> {
        // SAFETY: as above.
        let replayed = unsafe { Dispatch::graph_replay(self.device.as_dispatch(), &self.graph) };
        replayed.map_err(|error| error.to_string())
    }
}

/// The text of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
