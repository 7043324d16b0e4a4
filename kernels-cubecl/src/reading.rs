use burn::tensor::Tensor;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use crate::{
    backends::is_cube,
    status::{Status, TensorStatus, rows_later},
    watch::{Crossing, CrossingStatus},
};

/// A status on its way to the host, where nobody waits for it.
///
/// CubeCL's devices copy what is read when it is looked at, and that waits: so a thread of its own looks at it, one for the program.
#[derive(Debug)]
pub struct Reading {
    /// Of each tensor of the list.
    elements: Vec<u64>,
    crossings: Vec<Crossing>,
    found: Mutex<Found>,
}

type Rows = Vec<Vec<TensorStatus>>;

#[derive(Debug)]
enum Found {
    Coming(Receiver<thread::Result<Rows>>),
    There(Rows),
}

impl Status {
    /// Sends the status to the host, and what was found in crossings with it. Does not wait for the device.
    pub fn start(self, crossings: Vec<Crossing>) -> Reading {
        Reading::new(self, crossings, |tensors| {
            let is_cube = |rows: &Tensor<1>| is_cube(&rows.clone().into_dispatch());
            match tensors.iter().any(is_cube) {
                true => Found::Coming(read_elsewhere(tensors)),
                false => Found::There(rows_later(tensors)()),
            }
        })
    }
}

impl Reading {
    fn new(
        status: Status,
        crossings: Vec<Crossing>,
        read: impl FnOnce(Vec<Tensor<1>>) -> Found,
    ) -> Self {
        let (rows, elements) = status.into_parts();
        let tensors = crossings.iter().map(Crossing::rows).chain(rows);
        let found = Mutex::new(read(tensors.collect()));
        Self {
            elements,
            crossings,
            found,
        }
    }

    /// Reads here. Waits for the device.
    pub(crate) fn now(status: Status, crossings: Vec<Crossing>) -> Self {
        Self::new(status, crossings, |tensors| {
            Found::There(rows_later(tensors)())
        })
    }

    /// Whether it is there. Does not wait.
    ///
    /// # Panics
    ///
    /// In Burn, if the device has failed.
    pub fn is_there(&self) -> bool {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Found::Coming(coming) = &*found
            && let Ok(rows) = coming.try_recv()
        {
            *found = Found::There(rows.unwrap_or_else(|panic| resume_unwind(panic)));
        }
        matches!(&*found, Found::There(_))
    }

    /// What was found: a row for each tensor, and for each crossing, with [this scale](Crossing::with_scale). Waits for it, if it is not there.
    ///
    /// # Panics
    ///
    /// In Burn, if the device has failed.
    pub fn wait(&self, scale: f64) -> (Vec<TensorStatus>, Vec<Option<CrossingStatus>>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Found::Coming(coming) = &*found {
            let rows = coming
                .recv()
                .expect("the thread that reads sends an answer");
            *found = Found::There(rows.unwrap_or_else(|panic| resume_unwind(panic)));
        }
        let Found::There(rows) = &*found else {
            unreachable!("it has come")
        };
        let (crossed, own) = rows.split_at(self.crossings.len());
        let own = own.iter().flatten();
        // A row less would give its tensor another's numbers, or none, and an overflow would pass unseen.
        assert_eq!(
            own.clone().count(),
            self.elements.len(),
            "a row for each tensor"
        );
        let counted = |(row, elements): (&TensorStatus, &u64)| TensorStatus {
            elements: *elements,
            ..*row
        };
        let crossed = self.crossings.iter().zip(crossed);
        (
            own.zip(&self.elements).map(counted).collect(),
            crossed
                .map(|(crossing, rows)| crossing.clone().with_scale(scale).status(rows))
                .collect(),
        )
    }
}

/// Reads rows on the thread for it.
fn read_elsewhere(tensors: Vec<Tensor<1>>) -> Receiver<thread::Result<Rows>> {
    type Work = Box<dyn FnOnce() + Send>;
    static READER: OnceLock<Sender<Work>> = OnceLock::new();
    let reader = READER.get_or_init(|| {
        let (sender, receiver) = channel::<Work>();
        thread::spawn(move || receiver.into_iter().for_each(|work| work()));
        sender
    });
    let (sender, receiver) = channel();
    // Launched here, in the order of this thread's work; what is left is the copy.
    let rows = rows_later(tensors);
    let work: Work = Box::new(move || {
        let rows = catch_unwind(AssertUnwindSafe(rows));
        // Nobody may be left to hear of it.
        let _ = sender.send(rows);
    });
    reader.send(work).expect("the thread that reads never ends");
    receiver
}
