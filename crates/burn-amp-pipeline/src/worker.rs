//! A thread that owns a value and does jobs on it, in the order in which they come.

use burn_amp_core::AmpError;
use burn_amp_kernels::panic_message;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

// The tests put those of a model checker in their place.
use super::sync::mpsc::{Receiver, SyncSender, sync_channel};
use super::sync::thread::{Builder, JoinHandle};

/// Jobs that may wait while another is done: a caller with one more waits.
const WAITING: usize = 1;

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// A value on a thread of its own. Ends with it: jobs that were taken are done first.
pub(crate) struct Worker<T> {
    jobs: Option<SyncSender<Job<T>>>,
    thread: Option<JoinHandle<T>>,
    /// The error of a job that has panicked, and of all after it: the value may be half changed.
    refused: Arc<OnceLock<AmpError>>,
}

/// The result of a job, which may not be done yet.
pub(crate) struct Pending<R>(Receiver<Result<R, AmpError>>);

impl<T: Send + 'static> Worker<T> {
    /// Moves the value to a new thread of this name.
    ///
    /// # Errors
    ///
    /// If the system has no thread to give.
    pub(crate) fn start(name: &str, mut value: T) -> Result<Self, AmpError> {
        let (jobs, queue) = sync_channel::<Job<T>>(WAITING);
        let work = move || {
            while let Ok(job) = queue.recv() {
                job(&mut value);
            }
            value
        };
        let thread = Builder::new().name(name.to_string()).spawn(work);
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread.map_err(|error| ended(&error.to_string()))?),
            refused: Arc::default(),
        })
    }

    /// Gives the thread a job. Waits while the queue is full.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); the job is not done.
    pub(crate) fn send<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<Pending<R>, AmpError> {
        self.check()?;
        let (reply, result) = sync_channel(1);
        let refused = self.refused.clone();
        let job = move |value: &mut T| {
            let done = match refused.get() {
                Some(error) => Err(error.clone()),
                None => catch_unwind(AssertUnwindSafe(|| job(value))).map_err(|panic| {
                    let error = ended(panic_message(&*panic));
                    refused.get_or_init(|| error).clone()
                }),
            };
            // Nobody may want it.
            let _ = reply.send(done);
        };
        if let Some(jobs) = &self.jobs {
            // Where there is no thread any more, `wait` says so.
            let _ = jobs.send(Box::new(job));
        }
        Ok(Pending(result))
    }

    /// An error if a job has panicked, of all that are known to be over.
    pub(crate) fn check(&self) -> Result<(), AmpError> {
        self.refused.get().cloned().map_or(Ok(()), Err)
    }

    /// Ends the thread, when all jobs are done, and gives the value back.
    ///
    /// # Errors
    ///
    /// If a job has panicked.
    pub(crate) fn finish(mut self) -> Result<T, AmpError> {
        let value = self.join();
        self.check()?;
        value.ok_or_else(|| ended(""))
    }
}

impl<T> Worker<T> {
    fn join(&mut self) -> Option<T> {
        self.jobs = None;
        // Panics of jobs were caught.
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.join();
    }
}

impl<R> Pending<R> {
    /// Waits until the job is done.
    ///
    /// # Errors
    ///
    /// If it has panicked, or was refused because one before it has.
    pub(crate) fn wait(&self) -> Result<R, AmpError> {
        self.0.recv().unwrap_or_else(|_| Err(ended("")))
    }
}

fn ended(reason: &str) -> AmpError {
    let reason = reason.to_string();
    AmpError::OptimizerThread { reason }
}
