//! The ranks of a training in several processes: what they decide together, in one exchange for each step.

use burn::module::Module;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::AmpError;
use crate::lock::locked;
use crate::scale::finding::{Finding, Grounds, SkipCause, Tested, join_regions};
use crate::scale::loss_scale::Measures;
use crate::scale::regions::RegionState;
use crate::scale::step_counters::StepCounters;
use crate::values::{Parameter, distinct_parameters};

/// The other ranks of a training in several processes, each with an optimizer and a loss scale of its own, which decide together:
/// [`ScaledOptimizer::with_peers`](crate::ScaledOptimizer::with_peers).
///
/// An engine implements it: MPI, a collective library, channels between threads. What it exchanges is a [`Vote`] of about a hundred bytes. Gradients are
/// summed by the program, before each step, so that all ranks step with the same.
///
/// ```
/// use burn_amp::optim::{Peers, Vote};
/// use std::error::Error;
/// use std::sync::{Arc, Barrier, Mutex};
///
/// /// Ranks that are threads of one process.
/// struct Threads {
///     rank: usize,
///     votes: Arc<Mutex<Vec<Option<Vote>>>>,
///     all: Arc<Barrier>,
/// }
///
/// impl Peers for Threads {
///     fn rank(&self) -> usize {
///         self.rank
///     }
///
///     fn size(&self) -> usize {
///         self.votes.lock().unwrap().len()
///     }
///
///     fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
///         self.votes.lock().unwrap()[self.rank] = Some(vote);
///         self.all.wait();
///         let votes = self.votes.lock().unwrap().clone();
///         self.all.wait();
///         Ok(Vote::join(votes.into_iter().flatten()))
///     }
/// }
/// ```
pub trait Peers: Send + Sync + 'static {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Gives the vote of this rank to all, and returns what [`Vote::join`] makes of the votes of all ranks, in the order of their ranks: the same
    /// on each.
    ///
    /// Called as often on every rank: once for each step, each tested micro-batch and each call of
    /// [`unscale`](crate::ScaledOptimizer::unscale) and [`calibrate`](crate::ScaledOptimizer::calibrate), once before the first of these, once after the
    /// first update, and once at the end. A rank whose step fails votes too. Waits for the slowest rank.
    ///
    /// The last vote is given when the optimizer is dropped. One that is leaked ([`std::mem::forget`]) gives none: the others wait for it, until the
    /// engine finds that its process is gone (`mpirun` does, and ends the job). Where that may be, have `agree` wait no longer than some limit.
    ///
    /// # Errors
    ///
    /// Where the ranks cannot be reached any more. The step ends with [`AmpError::Ranks`], and no more votes are asked for.
    fn agree(&self, vote: Vote) -> Result<Vote, Box<dyn Error + Send + Sync>>;
}

/// What one rank has found in a step, or all of them together. Sent as an engine likes: it is [`Serialize`] and [`Deserialize`], in any format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// The rank that votes; of a joined one, the first rank, or the one that is the reason.
    rank: usize,
    says: Says,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Says {
    /// Settings and state before a step, which must be the same on all ranks.
    Begins(String),
    /// What a test of gradients has found.
    Tested(Ballot),
    /// The highest loss scale that a backward pass allows.
    Scale(f32),
    /// The rank cannot make its step.
    Fails(String),
    /// The rank has ended its training.
    Ends,
}

/// The findings of a step that ranks decide on together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ballot {
    /// The loss scale of the step, in bits, and the number of calls before it: the same on all ranks.
    scale: u32,
    calls: u64,
    pub(crate) tested: Tested,
    /// The grounds of the cause of an overflow.
    pub(crate) grounds: Grounds,
    /// Set if a cause that nobody knows spares the loss scale.
    pub(crate) spares: bool,
    /// The regions that are the cause of an overflow.
    pub(crate) regions: BTreeSet<String>,
    /// The measures of all ranks: those of the gradients, which are the same everywhere.
    #[serde(with = "in_json")]
    pub(crate) measures: Measures,
    /// The sum of the losses that were given, in bits, because some formats have no NaN, and their number.
    loss: (u64, u32),
    /// The regions that this step has entered, or that gradients have come to.
    #[serde(with = "in_json")]
    pub(crate) entered: BTreeMap<String, RegionState>,
}

/// A value as text: some formats need all fields of a struct, and these values leave out what says nothing.
mod in_json {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::Error as _};

    pub(super) fn serialize<T: serde::Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(value).map_err(S::Error::custom)?;
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, T: serde::de::DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}

impl Vote {
    /// Joins the votes of all ranks: the most severe counts. Give them in the order of the ranks, so that all come to the same bits.
    ///
    /// A rank that fails, or has ended, comes before all else. A loss that is not finite comes before an overflow by the loss scale, and that before
    /// finite gradients. Largest magnitudes and norms are the largest of all ranks, losses are averaged, and measures of regions are those of all gradients
    /// together. Without any vote, no rank is there.
    pub fn join(votes: impl IntoIterator<Item = Self>) -> Self {
        let joined = votes.into_iter().reduce(Self::and);
        joined.unwrap_or(Self {
            rank: 0,
            says: Says::Ends,
        })
    }

    /// Returns true if a rank has ended its training. An engine that exchanges more than votes can say so to ranks that wait for another exchange.
    pub fn ends(&self) -> bool {
        self.says == Says::Ends
    }

    fn and(self, other: Self) -> Self {
        let (rank, says) = match (self.says, other.says) {
            (says @ Says::Fails(_), _) => (self.rank, says),
            (_, says @ Says::Fails(_)) => (other.rank, says),
            (Says::Ends, _) => (self.rank, Says::Ends),
            (_, Says::Ends) => (other.rank, Says::Ends),
            (Says::Begins(one), Says::Begins(two)) if one == two => (self.rank, Says::Begins(one)),
            (Says::Begins(one), Says::Begins(two)) => {
                let what = difference(self.rank, &one, &two);
                let reason = format!("it begins otherwise than rank {}: {what}", self.rank);
                (other.rank, Says::Fails(reason))
            }
            (Says::Scale(one), Says::Scale(two)) => (self.rank, Says::Scale(one.min(two))),
            (Says::Tested(one), Says::Tested(two)) => match one.differs(&two) {
                None => (self.rank, Says::Tested(one.and(two))),
                Some([here, there]) => {
                    let reason = format!("it {there}, where rank {} {here}", self.rank);
                    (other.rank, Says::Fails(reason))
                }
            },
            _ => {
                let reason = format!("it makes another call than rank {}", self.rank);
                (other.rank, Says::Fails(reason))
            }
        };
        Self { rank, says }
    }
}

/// Describes the parameters of a module, a line for each: path, shape, dtype, and a checksum of the values. Waits for the device.
pub fn described<M: Module>(module: &M) -> Vec<String> {
    let line = |Parameter { path, value, .. }: Parameter| {
        let data = value.into_data();
        let sum = crc32fast::hash(data.as_bytes());
        let (shape, dtype) = (data.shape().to_vec(), data.dtype());
        format!("`{path}` of shape {shape:?} in {dtype:?}, with the checksum {sum:x}")
    };
    distinct_parameters(module).into_iter().map(line).collect()
}

/// Names the first line in which a rank's text differs from that of another `rank`, or the numbers of their parameters.
pub fn difference(rank: usize, text: &str, other: &str) -> String {
    let mut lines = text.lines().zip(other.lines());
    let [one, two] = match lines.find(|(one, two)| one != two) {
        Some((one, two)) => [one, two].map(String::from),
        None => [text, other].map(|text| {
            let parameters = text.lines().filter(|line| line.starts_with('`')).count();
            format!("{parameters} parameters")
        }),
    };
    format!("it has {two}, where rank {rank} has {one}")
}

impl Ballot {
    /// The findings of this rank in a step with this loss scale, after so many others.
    pub(crate) fn of(found: &Finding, scale: f32, before: &StepCounters) -> Self {
        Self {
            scale: scale.to_bits(),
            calls: before.steps() + before.dropped() + before.discarded(),
            tested: found.tested.clone(),
            grounds: Grounds::Own,
            spares: false,
            regions: BTreeSet::new(),
            measures: found.measures,
            loss: (0.0f64.to_bits(), 0),
            entered: BTreeMap::new(),
        }
    }

    /// Says of two ranks in what they have come apart, if they have: by a call that only one of them has made.
    fn differs(&self, other: &Self) -> Option<[String; 2]> {
        let both = [self, other];
        if self.scale != other.scale {
            let scale = |one: &Self| format!("has the loss scale {}", f32::from_bits(one.scale));
            return Some(both.map(scale));
        }
        let calls = |one: &Self| format!("has stepped or discarded {} times", one.calls);
        (self.calls != other.calls).then(|| both.map(calls))
    }

    /// The rank of a finding among those of all, who believe the highest: by the grounds of a cause, and then by the cause.
    fn severity(&self) -> (u32, u32) {
        match &self.tested {
            Tested::Nothing => (0, 0),
            Tested::Finite | Tested::Rejected(_) => (1, 0),
            Tested::Overflow { cause, .. } => match (self.grounds, cause) {
                (Grounds::Guess, cause) => (2, cause.severity()),
                (_, SkipCause::Unknown) => (3, 0),
                (Grounds::Earlier, cause) => (4, cause.severity()),
                (Grounds::Own, cause) => (5, cause.severity()),
            },
        }
    }

    fn and(self, other: Self) -> Self {
        let order = self.severity().cmp(&other.severity());
        let regions = join_regions(order, self.regions, other.regions);
        let (tested, grounds) = match order {
            Ordering::Less => (other.tested, other.grounds),
            _ => (self.tested, self.grounds),
        };
        let sum = f64::from_bits(self.loss.0) + f64::from_bits(other.loss.0);
        let (one, two) = (self.measures, other.measures);
        let mut entered = self.entered;
        for (name, state) in other.entered {
            let joined = match entered.remove(&name) {
                Some(known) => known.and(state),
                None => state,
            };
            entered.insert(name, joined);
        }
        Self {
            scale: self.scale,
            calls: self.calls,
            tested,
            grounds,
            spares: self.spares || other.spares,
            regions,
            measures: Measures {
                max_abs: one.max_abs.max(two.max_abs),
                norm: one.norm.max(two.norm),
                elements: one.elements.max(two.elements),
                zeros: one.zeros.min(two.zeros),
                above: one.above.max(two.above),
                ..Measures::default()
            },
            loss: (sum.to_bits(), self.loss.1 + other.loss.1),
            entered,
        }
    }
}

/// The ranks of an optimizer, as it sees them.
pub(crate) struct Ranks {
    peers: Box<dyn Peers>,
    votes: AtomicU64,
    /// The number of updates from which on ranks compare again what must be the same: none before the first step, and one more after it, which shows
    /// whether the optimizers are the same.
    compares_from: AtomicU64,
    /// The reason why no more votes are given.
    over: Mutex<Option<AmpError>>,
}

impl Ranks {
    pub(crate) fn new(peers: impl Peers) -> Self {
        Self {
            peers: Box::new(peers),
            votes: AtomicU64::new(0),
            compares_from: AtomicU64::new(0),
            over: Mutex::default(),
        }
    }

    /// The number of votes that this rank has given.
    pub(crate) fn votes(&self) -> u64 {
        self.votes.load(Relaxed)
    }

    /// Compares what is the same on all ranks, before the first step and after the first of these updates. Returns the number of votes then.
    pub(crate) fn begin(
        &self,
        updates: u64,
        about: impl FnOnce() -> String,
    ) -> Result<u64, AmpError> {
        let from = self.compares_from.load(Relaxed);
        if updates >= from {
            self.vote(Says::Begins(about()))?;
            let next = if from == 0 { updates + 1 } else { u64::MAX };
            self.compares_from.store(next, Relaxed);
        }
        Ok(self.votes())
    }

    /// Has the next step begin as the first: another state was loaded.
    pub(crate) fn restart(&self) {
        self.compares_from.store(0, Relaxed);
    }

    /// Decides on gradients together with all ranks. The `loss` becomes the mean of all.
    pub(crate) fn decide(
        &self,
        mut ballot: Ballot,
        loss: &mut Option<f64>,
    ) -> Result<Ballot, AmpError> {
        if let Some(loss) = loss {
            ballot.loss = (loss.to_bits(), 1);
        }
        match self.vote(Says::Tested(ballot))? {
            Says::Tested(joined) => {
                let (sum, losses) = joined.loss;
                let mean = f64::from_bits(sum) / f64::from(losses);
                *loss = (losses > 0).then_some(mean);
                Ok(joined)
            }
            _ => Err(self.mixed_up()),
        }
    }

    /// The lowest of the scales of all ranks.
    pub(crate) fn lowest(&self, scale: f32) -> Result<f32, AmpError> {
        match self.vote(Says::Scale(scale))? {
            Says::Scale(scale) => Ok(scale),
            _ => Err(self.mixed_up()),
        }
    }

    /// Says to the others that a step of this rank has failed, unless it has voted in it, after so many votes.
    pub(crate) fn fail(&self, votes: u64, error: &AmpError) {
        if self.votes() == votes {
            let _known = self.vote(Says::Fails(error.to_string()));
        }
    }

    fn vote(&self, says: Says) -> Result<Says, AmpError> {
        if let Some(error) = &*locked(&self.over) {
            return Err(error.clone());
        }
        self.votes.fetch_add(1, Relaxed);
        let rank = self.peers.rank();
        match self.peers.agree(Vote { rank, says }) {
            Err(error) => Err(self.end(error.to_string(), None)),
            Ok(Vote { rank, says }) => match says {
                Says::Fails(reason) => Err(AmpError::Ranks {
                    rank: Some(rank),
                    reason,
                }),
                Says::Ends => Err(self.end("it has ended its training".to_string(), Some(rank))),
                says => Ok(says),
            },
        }
    }

    fn mixed_up(&self) -> AmpError {
        self.end("the engine has given back another vote".to_string(), None)
    }

    /// Ends all votes.
    fn end(&self, reason: String, rank: Option<usize>) -> AmpError {
        let error = AmpError::Ranks { rank, reason };
        *locked(&self.over) = Some(error.clone());
        error
    }
}

/// Says to the others that this rank has ended, so that they do not wait for it.
impl Drop for Ranks {
    fn drop(&mut self) {
        // An engine that panics while this thread does would end the program.
        let _known = catch_unwind(AssertUnwindSafe(|| self.vote(Says::Ends).map(drop)));
    }
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, size) = (self.peers.rank(), self.peers.size());
        write!(f, "rank {rank} of {size}")
    }
}
