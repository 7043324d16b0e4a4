//! The gradients of passes, by hand, and what they say.

use crate::model::INPUT;
use crate::program::{BESIDE, Clip, Pass, RANKS, Shape};

/// What a backward pass gives.
#[derive(Clone, Copy)]
pub struct Found {
    /// None where nothing is trained.
    pub gradient: Option<[f32; 4]>,
    pub skip: Skip,
}

/// Why the part of each rank overflows.
pub type Skip = [Option<Cause>; RANKS];

/// From the least severe on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Region,
    Scale,
    Loss,
}

/// What gradients say of the scale.
#[derive(Clone, Copy, PartialEq)]
pub enum Evidence {
    /// There were none.
    Nothing,
    Finite,
    /// Finite, and all zero.
    Zeros,
    Rejected,
    Overflow(Cause),
}

impl Found {
    /// With this loss scale, and this factor of the region, if the pass is in it, on so many ranks.
    pub fn by_hand(pass: Pass, scale: f32, region: f32, ranks: usize) -> Self {
        if pass.shape == Shape::Frozen {
            let (gradient, skip) = (None, Skip::default());
            return Self { gradient, skip };
        }
        let slope = pass.slope.value();
        let beside = match pass.shape {
            Shape::First | Shape::Last => 2f32.powi(BESIDE),
            _ => 0.0,
        };
        // A chain is two products with the input.
        let times = if pass.shape == Shape::Chained { 2 } else { 1 };
        let skip_of = |part: [bool; 4]| {
            let fits_of = |slope: f32, factor: f32, power: i32| {
                let here = INPUT.iter().zip(part).filter(|(_, is_here)| *is_here);
                let mut values = here.map(|(x, _)| slope * x.powi(power) * factor);
                values.all(|value| value.abs() < 65520.0)
            };
            let fits = |factor: f32, power: i32| fits_of(slope, factor, power);
            let all_fit = |factor: f32| (0..=times).all(|power| fits(factor, power));
            let beside_fits = (0..=1).all(|power| fits_of(beside, scale, power));
            match pass.shape {
                // Its gradients come first, and none goes on before all have come.
                Shape::First if !fits_of(beside, scale, 0) => Some(Cause::Scale),
                _ if !slope.is_finite() => Some(Cause::Loss),
                _ if !beside_fits => Some(Cause::Scale),
                // It comes to the region as it comes to the scope.
                Shape::Region if fits(scale, 0) => {
                    (!all_fit(scale * region)).then_some(Cause::Region)
                }
                _ => (!all_fit(scale)).then_some(Cause::Scale),
            }
        };
        let mut skip = Skip::default();
        for (rank, skip) in skip.iter_mut().enumerate().take(ranks) {
            *skip = pass.part(rank, ranks).and_then(skip_of);
        }
        let gradient = INPUT.map(|x| slope * x.powi(times) + beside * x);
        Self {
            gradient: Some(gradient),
            skip,
        }
    }
}

/// Of each rank what happened first, and of these the most severe.
fn first(skips: &[Skip]) -> Option<Cause> {
    let of_rank = |rank: usize| skips.iter().find_map(|skip| skip[rank]);
    (0..RANKS).filter_map(of_rank).max()
}

/// What gradients say. Of an overflow, what happened first is the cause, in passes that nobody has tested too.
pub fn evidence(skips: &[Skip], tested: &[Found]) -> Evidence {
    let own: Vec<_> = tested.iter().map(|found| found.skip).collect();
    match first(&own) {
        Some(own) => Evidence::Overflow(first(skips).unwrap_or(own)),
        None if tested.iter().all(|found| found.gradient.is_none()) => Evidence::Nothing,
        None if sum(tested) == [0.0; 4] => Evidence::Zeros,
        None => Evidence::Finite,
    }
}

pub fn sum(window: &[Found]) -> [f32; 4] {
    let gradients = window.iter().filter_map(|found| found.gradient);
    // A sum of negative zeros is one.
    gradients.fold([-0.0; 4], |sum, of| std::array::from_fn(|i| sum[i] + of[i]))
}

/// Of all passes, also those without gradients. Unscaling multiplies, by an inverse that is rounded.
pub fn mean(window: &[Found]) -> [f32; 4] {
    let by = 1.0 / window.len() as f32;
    sum(window).map(|value| value * by)
}

/// Of a hook's factor and that of a norm the smaller holds. Values are limited after it.
pub fn clipped(gradient: [f32; 4], rule: Option<Clip>, factor: f32) -> [f32; 4] {
    let norm = gradient.iter().map(|value| value * value).sum::<f32>();
    let shortened = |limit: f32| factor.min((limit / norm.sqrt()).min(1.0));
    match rule.map(|rule| (rule, rule.limit())) {
        None => gradient.map(|value| value * factor),
        Some((Clip::Value | Clip::Group, limit)) => {
            gradient.map(|value| (value * factor).clamp(-limit, limit))
        }
        Some((Clip::Norm | Clip::GlobalNorm, limit)) => {
            gradient.map(|value| value * shortened(limit))
        }
    }
}
