//! Ranks of a training in several processes: threads here, each with its part of every batch. All show the same after each call.

use super::{Executor, scaled::Scaled};
use crate::program::{Action, Program, Shown};
use burn_amp::optim::ModuleOptim;
use burn_amp_tests::{Pack, ranks::Rank};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What a rank is asked for.
#[derive(Clone)]
enum Call {
    Act(Action),
    Shown { is_end: bool },
    Record,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Shown(Option<Box<Shown>>),
    Record(Option<Box<Pack>>),
}

struct Worker {
    calls: Sender<Call>,
    answers: Receiver<Answer>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn new<O: ModuleOptim + Clone + 'static>(
        program: &Program,
        make: fn() -> O,
        rank: Rank,
    ) -> Self {
        let (calls, asked) = channel();
        let (answer, answers) = channel();
        let program = program.clone();
        let thread = thread::spawn(move || {
            let mut own = Scaled::of(&program, make, Some(rank));
            for call in asked {
                let said = match call {
                    Call::Act(action) => {
                        own.act(&action);
                        Answer::Done
                    }
                    Call::Shown { is_end } => Answer::Shown(own.shown(is_end).map(Box::new)),
                    Call::Record => Answer::Record(own.record().map(Box::new)),
                };
                // Nobody waits for it where another rank has failed.
                let _sent = answer.send(said);
            }
        });
        Self {
            calls,
            answers,
            thread,
        }
    }
}

pub struct Ranks {
    workers: Vec<Worker>,
}

impl Ranks {
    pub fn new<O: ModuleOptim + Clone + 'static>(
        program: &Program,
        ranks: usize,
        make: fn() -> O,
    ) -> Self {
        let workers = Rank::all(ranks).into_iter();
        let workers = workers.map(|rank| Worker::new(program, make, rank));
        Self {
            workers: workers.collect(),
        }
    }

    /// What all answer.
    fn ask(&self, call: Call) -> Answer {
        for worker in &self.workers {
            worker.calls.send(call.clone()).unwrap();
        }
        let answers = self.workers.iter().enumerate().map(|(rank, worker)| {
            let answer = worker.answers.recv_timeout(Duration::from_secs(60));
            answer.unwrap_or_else(|error| panic!("rank {rank}: {error}"))
        });
        let mut answers = answers.collect::<Vec<_>>().into_iter();
        let first = answers.next().unwrap();
        for (rank, other) in answers.enumerate() {
            assert_eq!(first, other, "rank 0 and rank {}", rank + 1);
        }
        first
    }
}

impl Executor for Ranks {
    fn act(&mut self, action: &Action) {
        self.ask(Call::Act(*action));
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        match self.ask(Call::Shown { is_end }) {
            Answer::Shown(shown) => shown.map(|shown| *shown),
            other => unreachable!("{other:?}"),
        }
    }

    fn record(&mut self) -> Option<Pack> {
        match self.ask(Call::Record) {
            Answer::Record(record) => record.map(|record| *record),
            other => unreachable!("{other:?}"),
        }
    }
}

/// Ends the threads, all at once: the last vote of each waits for the others.
impl Drop for Ranks {
    fn drop(&mut self) {
        let workers = self.workers.drain(..);
        let threads: Vec<_> = workers.map(|worker| worker.thread).collect();
        for thread in threads {
            // One that has failed has said so.
            let _ended = thread.join();
        }
    }
}
