//! A rank among the others: each call begins with what all are about to do.

use burn::module::ParamId;
use burn::tensor::Shape;
use mpi::environment::{Universe, is_finalized};
use std::error::Error;

use burn_amp_core::internal::{Parameter, difference};
use burn_amp_core::{AmpError, Vote};

use crate::world::World;

/// A call that a rank is about to make.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u64)]
pub(crate) enum Call {
    Vote,
    /// A vote by which an optimizer ends. Others may be in a step, or end, too.
    Leave,
    Average,
    Compare,
    Fail,
    End,
}

impl Call {
    const ALL: [Self; 6] = [
        Self::Vote,
        Self::Leave,
        Self::Average,
        Self::Compare,
        Self::Fail,
        Self::End,
    ];

    /// Says whether a rank that begins this call can go on with one that begins the other.
    fn goes_with(self, other: Self) -> bool {
        let is_vote = |call| matches!(call, Self::Vote | Self::Leave);
        self == other || is_vote(self) && is_vote(other)
    }

    fn does(self) -> &'static str {
        match self {
            Self::Vote => "votes on a step",
            Self::Average => "averages gradients",
            Self::Compare => "compares parameters",
            Self::Fail => "fails",
            Self::Leave | Self::End => "has ended its training",
        }
    }
}

/// A rank among the others.
pub(crate) struct Ranks {
    pub(crate) world: World,
    /// The reason why no call begins any more: all know it.
    over: Option<AmpError>,
    /// The parameters of the last average, and the checksum of their description.
    described: (Vec<(ParamId, Shape)>, u32),
    /// Ends MPI, after the communicator is freed.
    _universe: Option<Universe>,
}

impl Ranks {
    pub(crate) fn new(world: World, universe: Option<Universe>) -> Self {
        Self {
            world,
            over: None,
            described: Default::default(),
            _universe: universe,
        }
    }

    /// Compares a text that must be the same on all ranks.
    pub(crate) fn compare(&mut self, about: &str) -> Result<(), AmpError> {
        let sum = crc32fast::hash(about.as_bytes());
        self.begin_about(Call::Compare, sum, || about.to_string())
    }

    /// Begins an average of these gradients. Describes their parameters only if they are others than before.
    pub(crate) fn begin_average(&mut self, parameters: &[Parameter]) -> Result<(), AmpError> {
        let about = || {
            let line =
                |one: &Parameter| format!("`{}` of shape {:?}", one.path, one.shape().to_vec());
            parameters.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let these = || parameters.iter().map(|one| (one.id, one.shape()));
        let (known, sum) = &mut self.described;
        if !these().eq(known.iter().cloned()) {
            (*known, *sum) = (these().collect(), crc32fast::hash(about().as_bytes()));
        }
        let sum = *sum;
        self.begin_about(Call::Average, sum, about)
    }

    /// Begins a call with a text of this checksum, which must be the same on all ranks.
    fn begin_about(
        &mut self,
        call: Call,
        sum: u32,
        about: impl Fn() -> String,
    ) -> Result<(), AmpError> {
        let sums = self.begin(call, sum.into(), "")?;
        let Some(rank) = sums.iter().position(|other| *other != sums[0]) else {
            return Ok(());
        };
        let texts = self.world.gather_texts(&about());
        let reason = difference(0, &texts[0], &texts[rank]);
        Err(AmpError::Ranks {
            rank: Some(rank),
            reason,
        })
    }

    /// Says to the others that this rank fails in what they do.
    pub(crate) fn fail(&mut self, error: AmpError) -> AmpError {
        let _known = self.begin(Call::Fail, 0, &error.to_string());
        error
    }

    /// Begins a call on all ranks, unless one of them begins another. Returns a word of each rank.
    fn begin(&mut self, call: Call, word: u64, text: &str) -> Result<Vec<u64>, AmpError> {
        if let Some(error) = &self.over {
            return Err(error.clone());
        }
        let met = self.world.gather([call as u64, word]);
        let calls: Vec<Call> = met
            .iter()
            .map(|[call, _]| Call::ALL[*call as usize])
            .collect();
        let first = |is_so: &dyn Fn(Call) -> bool| calls.iter().position(|call| is_so(*call));
        let (fails, ends) = (
            first(&|call| call == Call::Fail),
            first(&|call| call == Call::End),
        );
        // Nobody exchanges anything with a rank again that has ended.
        if let (Some(rank), None) = (fails, ends) {
            let own = if call == Call::Fail { text } else { "" };
            let mut texts = self.world.gather_texts(own);
            let (rank, reason) = (Some(rank), texts.swap_remove(rank));
            return Err(AmpError::Ranks { rank, reason });
        }
        let Some(other) = first(&|call| !call.goes_with(calls[0])) else {
            return Ok(met.iter().map(|[_, word]| *word).collect());
        };
        let leaves = first(&|call| call == Call::Leave);
        let rank = ends.or(leaves).unwrap_or(other);
        let reason = match calls[rank] {
            call @ (Call::End | Call::Leave) => format!("it {}", call.does()),
            call => format!("it {}, where rank 0 {}", call.does(), calls[0].does()),
        };
        let rank = Some(rank);
        let error = AmpError::Ranks { rank, reason };
        self.over = Some(error.clone());
        Err(error)
    }

    pub(crate) fn vote(&mut self, vote: &Vote) -> Result<Vote, Box<dyn Error + Send + Sync>> {
        let bytes = postcard::to_stdvec(vote)?;
        let call = if vote.ends() { Call::Leave } else { Call::Vote };
        let lengths = self.begin(call, bytes.len() as u64, "")?;
        let lengths: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
        let votes = self.world.gather_bytes(&bytes, &lengths);
        let votes = votes.iter().map(|bytes| postcard::from_bytes(bytes));
        Ok(Vote::join(votes.collect::<Result<Vec<_>, _>>()?))
    }
}

/// Says to the others that this rank has ended, so that they do not wait for it.
impl Drop for Ranks {
    fn drop(&mut self) {
        if !is_finalized() {
            let _known = self.begin(Call::End, 0, "");
        }
    }
}
