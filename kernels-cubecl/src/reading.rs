use burn::tensor::{Tensor, TensorData};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;

use crate::device::Kind;
use crate::status::{FIELDS, decode};
use crate::{EventStatus, ServerError, Status, TensorStatus, UnreadEvent, panic_message};

/// A status on its way to the host, where nobody waits for it.
///
/// CubeCL's devices copy what is read when it is looked at, and that waits: so a thread of its own looks at it, one for the program.
#[derive(Debug)]
pub struct Reading {
    events: Vec<UnreadEvent>,
    /// The rows of each event, and then of the list.
    rows: Arc<Later>,
}

type Rows = Result<Vec<Vec<TensorStatus>>, Failure>;
/// Rows that are read by whoever looks at them first.
type Later = LazyLock<Rows, Box<dyn FnOnce() -> Rows + Send>>;

/// The way in which reading has failed.
#[derive(Debug)]
enum Failure {
    /// In Burn, with this message.
    Device(String),
    Server(ServerError),
}

impl Status {
    /// Reads the status, a row for each tensor, in the order of the list.
    ///
    /// Waits for the device, for one small transfer: 44 bytes a tensor from kernels.
    ///
    /// # Panics
    ///
    /// In Burn, if the device fails: it is lost, or work that was queued before cannot be done.
    pub fn read(self) -> Vec<TensorStatus> {
        Reading::now(self, Vec::new()).wait(1.0).0
    }

    /// Sends the status to the host, and what was found in events with it. Does not wait for the device.
    pub fn start(self, events: Vec<UnreadEvent>) -> Reading {
        Reading::new(self, events, false)
    }
}

impl Reading {
    /// Reads a status, and what was found in events: on one device, in one transfer for all. Waits for it.
    ///
    /// # Panics
    ///
    /// As [`Status::read`].
    pub fn now(status: Status, events: Vec<UnreadEvent>) -> Self {
        Self::new(status, events, true)
    }

    fn new(status: Status, events: Vec<UnreadEvent>, waits: bool) -> Self {
        let found = events.iter().map(|event| event.status.clone());
        let statuses: Vec<Status> = found.chain([status]).collect();
        let mut rows = statuses.iter().filter_map(|status| status.rows.clone());
        let elsewhere =
            !waits && rows.any(|rows| Kind::of(rows.device().as_dispatch()) == Kind::Cube);
        // Launched here, in the order of this thread's work; what is left is the copy.
        let read = AssertUnwindSafe(rows_later(statuses));
        let panicked = |panic: Box<dyn Any + Send>| {
            let message = panic_message(&*panic).to_string();
            Err(Failure::Device(message))
        };
        let read = move || catch_unwind(read).unwrap_or_else(panicked);
        let rows = Arc::new(Later::new(Box::new(read)));
        let reading = Self { events, rows };
        match elsewhere {
            true => read_elsewhere(reading.rows.clone()),
            false => _ = LazyLock::force(&reading.rows),
        }
        reading
    }

    /// Waits for the findings, if they are not there.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the device is a remote one, and its server is gone.
    pub fn check(&self) -> Result<(), ServerError> {
        match &**self.rows {
            Err(Failure::Server(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns true if it is there. Does not wait.
    pub fn is_there(&self) -> bool {
        LazyLock::get(&self.rows).is_some()
    }

    /// The findings: a row for each tensor, and for each event. Waits for them, if it is not there. `scale` is the value that the tensor of the
    /// events' factors had, which the host did not know when they were measured: a factor is the product of both.
    ///
    /// # Panics
    ///
    /// If the device has failed.
    pub fn wait(&self, scale: f64) -> (Vec<TensorStatus>, Vec<Option<EventStatus>>) {
        let rows = match &**self.rows {
            Ok(rows) => rows,
            Err(Failure::Device(message)) => panic!("{message}"),
            Err(Failure::Server(error)) => panic!("{error}"),
        };
        let events = self.events.iter().zip(rows);
        let events = events.map(|(event, rows)| event.status(rows, scale));
        (rows.last().cloned().unwrap_or_default(), events.collect())
    }
}

/// Has the thread for it read rows.
fn read_elsewhere(rows: Arc<Later>) {
    static READER: LazyLock<Sender<Arc<Later>>> = LazyLock::new(|| {
        let (sender, receiver) = channel::<Arc<Later>>();
        thread::spawn(move || {
            receiver
                .into_iter()
                .for_each(|rows| _ = LazyLock::force(&rows))
        });
        sender
    });
    READER.send(rows).expect("the thread that reads never ends");
}

/// Launches what is to be read, in one transfer where all rows are of one dtype on one device, and gives what looks at it, on any
/// thread: CubeCL's devices copy only then.
fn rows_later(statuses: Vec<Status>) -> impl FnOnce() -> Rows + Send {
    let of = |status: Status| (status.rows, status.elements);
    let (rows, elements): (Vec<_>, Vec<_>) = statuses.into_iter().map(of).unzip();
    let tensors: Vec<Tensor<1>> = rows.into_iter().flatten().collect();
    let kind = |tensor: &Tensor<1>| (tensor.device(), tensor.dtype());
    let alike = tensors.iter().all(|other| kind(other) == kind(&tensors[0]));
    let tensors = match alike && tensors.len() > 1 {
        true => vec![Tensor::cat(tensors, 0)],
        false => tensors,
    };
    let device = tensors.first().map(Tensor::device);
    let data = tensors.into_iter().map(Tensor::try_into_data);
    let data: Result<Vec<TensorData>, _> = data.collect();
    move || {
        let data = data.map_err(|error| {
            let message = error.to_string();
            let server = device.and_then(|device| ServerError::gone(&device, &message));
            server.map_or(Failure::Device(message), Failure::Server)
        })?;
        let mut fields = data.iter().flat_map(TensorData::iter);
        let mut rows = |elements: &Vec<u64>| {
            let own = fields.by_ref().take(elements.len() * FIELDS);
            decode(elements, own)
        };
        Ok(elements.iter().map(&mut rows).collect())
    }
}
