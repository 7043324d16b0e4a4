//! What a run may do, and what it shows.

use burn_amp::StepOutcome;
use proptest::{prelude::*, sample::select};

/// The settings of a run, and what it does.
#[derive(Clone, Debug)]
pub struct Program {
    /// The first loss scale is two to this.
    pub scale: i32,
    pub growth_interval: u32,
    pub micro_batches: u32,
    /// Whether a window steps with the sum of its gradients, and not with their mean.
    pub sums: bool,
    /// Whether each micro-batch is tested as it comes, and left out if it overflows.
    pub drops: bool,
    pub clip: Option<Clip>,
    /// A hook rejects each finite step of a number that this divides.
    pub rejects: Option<u64>,
    /// It halves the gradients of those of a number that this divides.
    pub halves: Option<u64>,
    /// Whether weights are averaged.
    pub averages: bool,
    pub actions: Vec<Action>,
}

impl Program {
    /// From a scale of 2^8 which each finite step moves, with nothing around a step.
    pub fn new(micro_batches: u32, actions: &[Action]) -> Self {
        Self {
            scale: 8,
            growth_interval: 1,
            micro_batches,
            sums: false,
            drops: false,
            clip: None,
            rejects: None,
            halves: None,
            averages: false,
            actions: actions.to_vec(),
        }
    }

    /// Code, for `found.rs`.
    pub fn code(&self) -> String {
        format!("{self:?}").replace("actions: [", "actions: vec![")
    }
}

/// By which rule gradients are clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    Value,
    Norm,
    GlobalNorm,
    /// By value, by the last group that matches.
    Group,
}

impl Clip {
    /// What is clipped by a norm is the input times a power of two, whose norm is 2.5 times that. So its factor is a power of two, and nobody
    /// rounds: norms of less than 40 stay as they are, and beside 80 and more the 1e-6 of PyTorch's rule vanishes.
    pub fn limit(self) -> f32 {
        match self {
            Self::Value | Self::Group => 0.5,
            Self::Norm | Self::GlobalNorm => 40.0,
        }
    }
}

/// One call of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A forward and a backward pass, and their step or micro-batch.
    Train(Pass),
    /// As `Train`, but the gradients are thrown away.
    Discard(Pass),
    /// As `Train`, but the gradients are unscaled and dropped.
    Unscale(Pass),
    /// A backward pass whose gradients nobody tests.
    Untested(Pass),
    /// A forward pass whose gradients nobody asks for.
    Validate,
    /// Steps with a window that is not full.
    Flush,
    /// Throws away a window that is not full.
    Clear,
    /// Keeps the record.
    Save,
    /// Goes on in a fresh state, from the record that was kept last.
    Load,
    /// Goes on with a clone.
    Clone,
    /// Changes the loss scale, or how it moves.
    Set(Setting),
    /// The next update sets the loss scale to two to this, whatever its gradients are.
    Replace(i32),
    /// Sets the learning rate to two to this.
    Rate(i32),
    /// Goes on with another model and optimizer on the same handle; then back.
    Swap,
    /// Drops the model and the optimizer that it has swapped with.
    Drop,
    /// Waits for all that is in flight.
    Wait,
}

/// What is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// The growth interval.
    Interval(u32),
    /// The growth factor, to two to this.
    Growth(i32),
    /// The backoff factor, to one over two to this.
    Backoff(i32),
    /// The growth tracker, if this is below the interval.
    Tracker(u32),
    /// The loss scale, to two to this.
    Scale(i32),
}

/// What a backward pass gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    pub slope: Slope,
    pub shape: Shape,
}

/// The gradient of the loss with respect to the model's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slope {
    /// Two to this.
    Power(i32),
    Zero,
    Nan,
    Infinite,
}

/// How the scopes of a pass stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    One,
    /// One in another.
    Nested,
    /// Beside a second one whose slope is [`BESIDE`], which the loss adds after it.
    First,
    /// Beside it, and added before.
    Last,
    /// Its output is the input of a second one.
    Chained,
    /// In a region whose factor moves.
    Region,
    /// Nothing in it is trained: there are no gradients.
    Frozen,
}

impl Shape {
    pub const ALL: [Self; 7] = [
        Self::One,
        Self::Nested,
        Self::First,
        Self::Last,
        Self::Chained,
        Self::Region,
        Self::Frozen,
    ];
}

/// Exact in f16 under the scales of nearly all runs: it overflows from 2^19 on.
pub const BESIDE: i32 = -4;

/// What a program may ask for, and not each executor has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    Accumulation,
    Dropping,
    Hook,
    Average,
    Flush,
    Discard,
    Unscale,
    Record,
    Clone,
    Setting,
    Several,
    Region,
    Clear,
    Replace,
    /// Of other shapes than one scope.
    Scopes,
    /// A pass before a step whose gradients nobody tests: a step that a device has recorded knows its own pass alone.
    Untested,
}

impl Need {
    /// What an action asks for; none if each executor has it.
    fn of(action: &Action) -> Option<Self> {
        match action {
            Action::Flush => Some(Self::Flush),
            Action::Discard(_) => Some(Self::Discard),
            Action::Unscale(_) => Some(Self::Unscale),
            Action::Save | Action::Load => Some(Self::Record),
            Action::Clone => Some(Self::Clone),
            Action::Clear => Some(Self::Clear),
            Action::Set(_) => Some(Self::Setting),
            Action::Replace(_) => Some(Self::Replace),
            Action::Swap | Action::Drop => Some(Self::Several),
            Action::Untested(_) => Some(Self::Untested),
            Action::Train(_) | Action::Validate => None,
            Action::Rate(_) | Action::Wait => None,
        }
    }
}

/// What is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub parameters: Vec<u32>,
    pub scale: f32,
    pub tracker: u32,
    /// The factor of the region.
    pub region: f32,
    pub counters: Counts,
    pub outcome: Option<StepOutcome>,
    /// None where they cannot be seen.
    pub hooks: Option<Hooks>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub steps: u64,
    pub skipped: u64,
    pub bad_losses: u64,
    pub skips_in_a_row: u64,
    pub discarded: u64,
    pub dropped: u64,
    pub rejected: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hooks {
    /// How many steps one has judged.
    pub judged: u64,
    /// The bits of the averages; none before the first.
    pub average: Option<Vec<u32>>,
}

impl Program {
    /// All that it asks for.
    pub fn needs(&self) -> impl Iterator<Item = Need> {
        let settings = [
            (self.micro_batches > 1).then_some(Need::Accumulation),
            self.drops.then_some(Need::Dropping),
            self.rejects.or(self.halves).map(|_| Need::Hook),
            self.averages.then_some(Need::Average),
        ];
        let actions = self.actions.iter().map(Need::of);
        let shapes = self.actions.iter().filter_map(Action::pass);
        let shapes = shapes.map(|pass| match pass.shape {
            Shape::One => None,
            Shape::Region => Some(Need::Region),
            _ => Some(Need::Scopes),
        });
        settings.into_iter().chain(actions).chain(shapes).flatten()
    }
}

impl Action {
    pub fn pass(&self) -> Option<Pass> {
        let mut copy = *self;
        copy.pass_mut().copied()
    }

    fn pass_mut(&mut self) -> Option<&mut Pass> {
        match self {
            Self::Train(pass) | Self::Discard(pass) => Some(pass),
            Self::Unscale(pass) | Self::Untested(pass) => Some(pass),
            _ => None,
        }
    }
}

/// The most ranks of a training.
pub const RANKS: usize = 3;

impl Pass {
    /// The values of the batch that a rank of so many has; none if it has no pass. A bad loss is that of one rank, and so are a third of the others;
    /// of the rest each has its part. In a region all are: in the middle of a window, the record of one knows no region of the others.
    pub fn part(self, rank: usize, ranks: usize) -> Option<[bool; 4]> {
        let alone = match self.slope {
            _ if self.shape == Shape::Region => None,
            Slope::Nan => Some(0),
            Slope::Infinite => Some(ranks - 1),
            Slope::Power(exponent) if exponent % 3 == 0 => {
                Some(exponent.unsigned_abs() as usize / 3 % ranks)
            }
            Slope::Power(_) | Slope::Zero => None,
        };
        let own = rank * 4 / ranks..(rank + 1) * 4 / ranks;
        match alone {
            None => Some(std::array::from_fn(|value| own.contains(&value))),
            Some(one) => (one == rank).then_some([true; 4]),
        }
    }
}

impl Slope {
    pub fn value(self) -> f32 {
        match self {
            Self::Power(exponent) => 2f32.powi(exponent),
            Self::Zero => 0.0,
            Self::Nan => f32::NAN,
            Self::Infinite => f32::INFINITY,
        }
    }
}

fn passes() -> impl Strategy<Value = Pass> {
    let slope = prop_oneof![
        6 => (-4i32..4).prop_map(Slope::Power),
        2 => (4i32..12).prop_map(Slope::Power),
        2 => (12i32..20).prop_map(Slope::Power),
        3 => select(vec![Slope::Zero, Slope::Nan, Slope::Infinite]),
    ];
    let shape = prop_oneof![
        3 => Just(Shape::One),
        7 => select(Shape::ALL.to_vec()),
    ];
    (slope, shape).prop_map(|(slope, shape)| Pass { slope, shape })
}

fn settings() -> impl Strategy<Value = Setting> {
    prop_oneof![
        (1u32..5).prop_map(Setting::Interval),
        (1i32..4).prop_map(Setting::Growth),
        (1i32..5).prop_map(Setting::Backoff),
        (0u32..4).prop_map(Setting::Tracker),
        (4i32..17).prop_map(Setting::Scale),
    ]
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        14 => passes().prop_map(Action::Train),
        1 => passes().prop_map(Action::Discard),
        1 => passes().prop_map(Action::Unscale),
        1 => passes().prop_map(Action::Untested),
        6 => select(vec![Action::Save, Action::Load]),
        6 => select(vec![
            Action::Validate,
            Action::Flush,
            Action::Clear,
            Action::Clone,
            Action::Drop,
            Action::Wait,
        ]),
        5 => settings().prop_map(Action::Set),
        1 => (4i32..17).prop_map(Action::Replace),
        1 => (-6i32..0).prop_map(Action::Rate),
        2 => Just(Action::Swap),
    ]
}

/// Runs as they are drawn, for somebody who `can` do what they need.
pub fn programs(can: impl Fn(Need) -> bool + 'static) -> impl Strategy<Value = Program> {
    let micro_batches = prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(4)];
    let clips = vec![Clip::Value, Clip::Norm, Clip::GlobalNorm, Clip::Group];
    let clip = prop_oneof![2 => Just(None), 4 => select(clips).prop_map(Some)];
    let rejects = prop_oneof![2 => Just(None), 1 => Just(Some(2u64)), 1 => Just(Some(3))];
    let halves = prop_oneof![3 => Just(None), 1 => Just(Some(1u64)), 1 => Just(Some(2))];
    let averages = prop_oneof![2 => Just(false), 1 => Just(true)];
    let windows = (micro_batches, any::<bool>(), any::<bool>());
    let hooks = (rejects, halves, averages);
    let settings = (8i32..17, 1u32..5, windows, clip, hooks);
    let drawn = (settings, prop::collection::vec(actions(), 1..24));
    drawn.prop_map(move |(settings, actions)| {
        let (scale, growth_interval, windows, clip, hooks) = settings;
        let (micro_batches, sums, drops) = windows;
        let (rejects, halves, averages) = hooks;
        let program = Program {
            scale,
            growth_interval,
            micro_batches,
            sums,
            drops,
            clip,
            rejects,
            halves,
            averages,
            actions,
        };
        program
            .with_exact_norms()
            .with_needs(&can)
            .with_what_is_defined()
    })
}

impl Program {
    /// See [`Clip::limit`].
    fn with_exact_norms(mut self) -> Self {
        if !matches!(self.clip, Some(Clip::Norm | Clip::GlobalNorm)) {
            return self;
        }
        self.micro_batches = 1;
        self.without_shapes(&[Shape::First, Shape::Last, Shape::Chained])
    }

    fn without_shapes(mut self, shapes: &[Shape]) -> Self {
        for pass in self.actions.iter_mut().filter_map(Action::pass_mut) {
            if shapes.contains(&pass.shape) {
                pass.shape = Shape::One;
            }
        }
        self
    }

    /// The record of one of several optimizers is half of a state. Nor is it defined whose skip a pass explains that nobody tests.
    fn with_what_is_defined(mut self) -> Self {
        let has_two = self.actions.contains(&Action::Swap);
        self.drops &= self.micro_batches > 1;
        self.sums &= self.micro_batches > 1;
        self.actions.retain(|action| match action {
            Action::Save | Action::Load => !has_two,
            Action::Untested(_) => !has_two,
            _ => true,
        });
        match has_two {
            true => self.without_shapes(&[Shape::Region]),
            false => self,
        }
    }

    fn with_needs(mut self, can: &dyn Fn(Need) -> bool) -> Self {
        self.actions
            .retain(|action| Need::of(action).is_none_or(can));
        if !can(Need::Accumulation) {
            self.micro_batches = 1;
        }
        self.drops &= can(Need::Dropping);
        self.rejects = self.rejects.filter(|_| can(Need::Hook));
        self.halves = self.halves.filter(|_| can(Need::Hook));
        self.averages &= can(Need::Average);
        for (need, shapes) in [
            (Need::Region, &[Shape::Region][..]),
            (Need::Scopes, &Shape::ALL[..]),
        ] {
            if !can(need) {
                self = self.without_shapes(shapes);
            }
        }
        self
    }
}
