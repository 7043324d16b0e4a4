//! Ranks of a training that are threads of this process.

use burn_amp::optim::{Peers, Vote};
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The values of a round, and the number of ranks that have read them.
type Round<T> = (Vec<Option<T>>, usize);

/// Gives all ranks the values of all. A rank that waits for ever is a failure.
struct Exchange<T> {
    round: Mutex<Round<T>>,
    changed: Condvar,
}

impl<T: Clone> Exchange<T> {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            round: Mutex::new((vec![None; size], 0)),
            changed: Condvar::new(),
        })
    }

    fn all(&self, rank: usize, value: T) -> Vec<T> {
        let long = Duration::from_secs(20);
        let until = |guard, is_over: &mut dyn FnMut(&mut Round<T>) -> bool| {
            let waits = |round: &mut _| !is_over(round);
            let (guard, timeout) = (self.changed.wait_timeout_while(guard, long, waits)).unwrap();
            assert!(!timeout.timed_out(), "rank {rank} waits for ever");
            guard
        };
        let mut round = until(self.round.lock().unwrap(), &mut |round| {
            round.0[rank].is_none()
        });
        round.0[rank] = Some(value);
        self.changed.notify_all();
        let mut round = until(round, &mut |round| round.0.iter().all(Option::is_some));
        let values = round.0.iter().flatten().cloned().collect();
        round.1 += 1;
        if round.1 == round.0.len() {
            round.0.fill(None);
            round.1 = 0;
            self.changed.notify_all();
        }
        drop(until(round, &mut |round| round.0[rank].is_none()));
        values
    }
}

/// The gradients of some parameters; none of one that has none.
pub type Gradients = Vec<Option<Vec<f32>>>;

/// One rank of several.
#[derive(Clone)]
pub struct Rank {
    /// Its number.
    pub rank: usize,
    /// The number of all.
    pub size: usize,
    votes: Arc<Exchange<Vote>>,
    gradients: Arc<Exchange<Gradients>>,
}

impl Rank {
    /// So many ranks, one for each thread.
    pub fn all(size: usize) -> Vec<Self> {
        let (votes, gradients) = (Exchange::new(size), Exchange::new(size));
        let rank = |rank| Self {
            rank,
            size,
            votes: votes.clone(),
            gradients: gradients.clone(),
        };
        (0..size).map(rank).collect()
    }

    /// The sums of the gradients of all ranks; one that has none counts as zeros.
    pub fn sums(&self, own: Gradients) -> Gradients {
        let all = self.gradients.all(self.rank, own).into_iter();
        let add = |one: Option<Vec<f32>>, two: Option<Vec<f32>>| match (one, two) {
            (Some(one), Some(two)) => Some(one.iter().zip(two).map(|(a, b)| a + b).collect()),
            (one, two) => one.or(two),
        };
        let sums =
            all.reduce(|sums, next| sums.into_iter().zip(next).map(|(a, b)| add(a, b)).collect());
        sums.unwrap_or_default()
    }
}

impl Peers for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
        // As engines send it.
        let sent = serde_json::to_string(&vote)?;
        let votes = self.votes.all(self.rank, serde_json::from_str(&sent)?);
        Ok(Vote::join(votes))
    }
}
