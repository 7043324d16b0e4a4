//! A thread that owns a value and does jobs on it, in the order in which they come.

use burn_amp_core::AmpError;
use burn_amp_kernels::panic_message;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

// The tests put those of a model checker in their place.
use super::sync::mpsc::{Receiver, SyncSender, sync_channel};
use super::sync::thread::{Builder, JoinHandle};

/// Jobs that may wait while another is done: a caller with one more waits.
const WAITING: usize = 1;

type Job<T> = Box<dyn FnOnce(&mut T) -> ControlFlow<()> + Send>;

/// A value on a thread of its own. Ends with it: jobs that were taken are done first.
pub(crate) struct Worker<T> {
    jobs: Option<SyncSender<Job<T>>>,
    thread: Option<JoinHandle<Option<T>>>,
    ended: Arc<OnceLock<String>>,
}

/// The result of a job, which may not be done yet.
pub(crate) struct Pending<R> {
    result: Receiver<R>,
    ended: Arc<OnceLock<String>>,
}

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
                if job(&mut value).is_break() {
                    // What waits is refused with the queue.
                    return None;
                }
            }
            Some(value)
        };
        let thread = Builder::new().name(name.to_string()).spawn(work);
        let thread = thread.map_err(|error| ended(error.to_string()))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            ended: Arc::default(),
        })
    }

    /// Gives the thread a job. Waits while the queue is full.
    ///
    /// # Errors
    ///
    /// If the thread has ended; the job is not done.
    pub(crate) fn send<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<Pending<R>, AmpError> {
        let (reply, result) = sync_channel(1);
        let pending = Pending {
            result,
            ended: self.ended.clone(),
        };
        let ended = self.ended.clone();
        let job: Job<T> = Box::new(move |value| {
            match catch_unwind(AssertUnwindSafe(|| job(value))) {
                Ok(result) => {
                    // Nobody may want it.
                    let _ = reply.send(result);
                    ControlFlow::Continue(())
                }
                Err(panic) => {
                    // Before `reply` is dropped, so that whoever waits for it finds the reason.
                    let _ = ended.set(panic_message(&*panic).to_string());
                    ControlFlow::Break(())
                }
            }
        });
        match &self.jobs {
            Some(jobs) if jobs.send(job).is_ok() => Ok(pending),
            _ => Err(reason(&self.ended)),
        }
    }

    /// An error if a job has panicked, of all that are known to be over.
    pub(crate) fn check(&self) -> Result<(), AmpError> {
        match self.ended.get() {
            Some(_) => Err(reason(&self.ended)),
            None => Ok(()),
        }
    }

    /// Ends the thread, when all jobs are done, and gives the value back.
    ///
    /// # Errors
    ///
    /// If a job has panicked.
    pub(crate) fn finish(mut self) -> Result<T, AmpError> {
        self.join().ok_or_else(|| reason(&self.ended))
    }
}

impl<T> Worker<T> {
    fn join(&mut self) -> Option<T> {
        self.jobs = None;
        // Panics of jobs were caught.
        self.thread.take()?.join().ok().flatten()
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
        self.result.recv().map_err(|_| reason(&self.ended))
    }
}

/// The error of a job that was not done: one before it has panicked, with this message.
fn reason(message: &OnceLock<String>) -> AmpError {
    ended(message.get().cloned().unwrap_or_default())
}

fn ended(reason: String) -> AmpError {
    AmpError::OptimizerThread { reason }
}
