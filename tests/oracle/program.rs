//! What a run may do, and what it shows.

use burn_amp::StepOutcome;
use proptest::prelude::*;

/// The settings of a run, and what it does. Its `Debug` text is code.
#[derive(Clone, Debug)]
pub struct Program {
    /// The first loss scale is two to this.
    pub scale: i32,
    pub growth_interval: u32,
    pub micro_batches: u32,
    /// Gradients are limited to this.
    pub limit: Option<f32>,
    /// A hook rejects each finite step of a number that this divides.
    pub rejects: Option<u64>,
    pub actions: Vec<Action>,
}

/// One call of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A forward and a backward pass, and their step or micro-batch.
    Train(Pass),
    /// As `Train`, but the gradients are thrown away.
    Discard(Pass),
    /// As `Train`, but the gradients are unscaled and dropped.
    Look(Pass),
    /// A backward pass whose gradients nobody tests.
    Untested(Pass),
    /// A forward pass whose gradients nobody asks for.
    Validate,
    /// Steps with a window that is not full.
    Flush,
    /// Keeps the record.
    Save,
    /// Goes on in a fresh state, from the record that was kept last.
    Load,
    /// Goes on with a clone.
    Clone,
    /// Sets the growth interval.
    Interval(u32),
    /// Sets the loss scale to two to this.
    Scale(i32),
    /// Waits for all that is in flight.
    Wait,
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
}

/// Exact in f16 under all scales of a run.
pub const BESIDE: i32 = -4;

/// What is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub parameters: Vec<u32>,
    pub scale: f32,
    pub tracker: u32,
    pub counters: Counts,
    pub outcome: Option<StepOutcome>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub steps: u64,
    pub skipped: u64,
    pub bad_losses: u64,
    pub skips_in_a_row: u64,
    pub discarded: u64,
    pub rejected: u64,
    /// How many steps the hook has judged.
    pub judged: u64,
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
        2 => (12i32..20).prop_map(Slope::Power),
        1 => Just(Slope::Zero),
        1 => Just(Slope::Nan),
        1 => Just(Slope::Infinite),
    ];
    let shape = prop_oneof![
        3 => Just(Shape::One),
        1 => Just(Shape::Nested),
        1 => Just(Shape::First),
        1 => Just(Shape::Last),
        1 => Just(Shape::Chained),
    ];
    (slope, shape).prop_map(|(slope, shape)| Pass { slope, shape })
}

/// Runs as they are drawn.
pub fn programs() -> impl Strategy<Value = Program> {
    let action = prop_oneof![
        12 => passes().prop_map(Action::Train),
        1 => passes().prop_map(Action::Discard),
        1 => passes().prop_map(Action::Look),
        1 => passes().prop_map(Action::Untested),
        1 => Just(Action::Validate),
        1 => Just(Action::Flush),
        1 => Just(Action::Save),
        1 => Just(Action::Load),
        1 => Just(Action::Clone),
        1 => (1u32..5).prop_map(Action::Interval),
        1 => (4i32..17).prop_map(Action::Scale),
        1 => Just(Action::Wait),
    ];
    let micro_batches = prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(4)];
    let limit = prop_oneof![Just(None), Just(Some(0.5))];
    let rejects = prop_oneof![2 => Just(None), 1 => Just(Some(2u64)), 1 => Just(Some(3))];
    let settings = (8i32..17, 1u32..5, micro_batches, limit, rejects);
    (settings, prop::collection::vec(action, 1..24)).prop_map(|(settings, actions)| {
        let (scale, growth_interval, micro_batches, limit, rejects) = settings;
        Program {
            scale,
            growth_interval,
            micro_batches,
            limit,
            rejects,
            actions,
        }
    })
}
