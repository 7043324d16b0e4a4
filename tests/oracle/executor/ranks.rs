//! Ranks of a training in several processes: threads here, each with its part of every batch. All show the same after each call.

use super::{Executor, scaled::Scaled};
use crate::program::{Action, Program, Shown};
use burn_amp::optim::ModuleOptim;
use burn_amp_tests::{Pack, ranks::Rank};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{fmt::Debug, thread};

pub struct Ranks<O: ModuleOptim + Clone + Send> {
    /// One thread each.
    threads: Vec<ThreadPool>,
    ranks: Vec<Scaled<O>>,
}

/// What all of them make of their own, each on its thread, at once: who votes waits for the others.
fn at_once<T: Send, R: Send>(
    threads: &[ThreadPool],
    own: Vec<T>,
    call: impl Fn(T) -> R + Sync,
) -> Vec<thread::Result<R>> {
    let call = &call;
    thread::scope(|scope| {
        let ranks = threads.iter().zip(own);
        let called = ranks.map(|(thread, own)| scope.spawn(move || thread.install(|| call(own))));
        let called: Vec<_> = called.collect();
        called.into_iter().map(|rank| rank.join()).collect()
    })
}

impl<O: ModuleOptim + Clone + Send> Ranks<O> {
    pub fn new(program: &Program, ranks: usize, make: fn() -> O) -> Self {
        let thread = |_| ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let threads: Vec<_> = (0..ranks).map(thread).collect();
        let of = |rank| Scaled::of(program, make, Some(rank));
        let ranks = at_once(&threads, Rank::all(ranks), of).into_iter();
        Self {
            ranks: ranks.map(Result::unwrap).collect(),
            threads,
        }
    }

    /// What all answer.
    fn ask<R: Send + PartialEq + Debug>(&mut self, call: impl Fn(&mut Scaled<O>) -> R + Sync) -> R {
        let own = self.ranks.iter_mut().collect();
        let mut answers = at_once(&self.threads, own, call).into_iter();
        let first = answers.next().unwrap().unwrap();
        for (rank, other) in answers.enumerate() {
            assert_eq!(first, other.unwrap(), "rank 0 and rank {}", rank + 1);
        }
        first
    }
}

impl<O: ModuleOptim + Clone + Send> Executor for Ranks<O> {
    fn act(&mut self, action: &Action) {
        self.ask(|own| own.act(action));
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        self.ask(|own| own.shown(is_end))
    }

    fn record(&mut self) -> Option<Pack> {
        self.ask(|own| own.record())
    }
}

/// Ends them all at once: the last vote of each waits for the others.
impl<O: ModuleOptim + Clone + Send> Drop for Ranks<O> {
    fn drop(&mut self) {
        // One that has failed has said so.
        let _ended = at_once(&self.threads, std::mem::take(&mut self.ranks), drop);
    }
}
