//! The step of an optimizer: whose it is, its numbers for each parameter, and one formula for the host and for CubeCL's kernels. Knows no
//! tensors.
//!
//! Each operation is Burn's own, in f32. On the host each is rounded: nothing here may be contracted to an FMA. Kernels' compilers may
//! contract a product and a sum (CUDA's do), and WGSL and SPIR-V allow division and square root some ulps: the last bits may differ from
//! those that Burn's kernels give.

#[cfg(feature = "cubecl")]
use cubecl::prelude::*;

use burn::tensor::DType;
use std::{collections::VecDeque, iter};

use crate::words::words;

/// Words of one that is not decided: the row's, how many steps the parameter has, and where its gradient is among those that were measured.
pub(crate) const UNDECIDED: usize = ROW + 2;

/// Which of Burn's optimizers takes a step, and what it keeps of each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "cubecl", derive(CubeType, IntoRuntime))]
#[cfg_attr(feature = "cubecl", cube(no_constructors))]
pub enum UpdateRule {
    /// Stochastic gradient descent; with momentum it keeps the velocity.
    Sgd {
        /// Whether there is momentum.
        momentum: bool,
        /// Whether it is Nesterov's.
        nesterov: bool,
    },
    /// Adam (Kingma and Ba, 2015): keeps both moments, and with AMSGrad (Reddi et al., 2018) the largest second one.
    Adam {
        /// Whether it is AMSGrad.
        amsgrad: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019): keeps what Adam keeps.
    AdamW {
        /// Whether it is AMSGrad.
        amsgrad: bool,
        /// Whether weights decay only where the update makes them smaller (arXiv 2510.12402).
        cautious: bool,
    },
}

words! {
    /// The numbers of one parameter's step, as Burn's optimizers take them: in f32.
    ///
    /// What a rule does not name it does not read.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    UpdateRow, ROW, column:
    /// Whether the step is taken: 1, or 0 to leave parameter and state as they are.
    0 TAKEN taken: f32,
    /// What the gradient is multiplied by, after it was widened to f32.
    1 SCALE scale: f32,
    /// The learning rate.
    2 LR lr: f32,
    /// Whether there is no state yet: 1, and what stands in its tensors is not read; or 0.
    3 FRESH fresh: f32,
    /// `Sgd` and `Adam`: the penalty, 0 for none. `AdamW`: the rate times the penalty if it is cautious, or else what the
    /// parameter is multiplied by.
    4 DECAY decay: f32,
    /// The momentum, or the first of Adam's betas.
    5 BETA_1 beta_1: f32,
    /// What the gradient is multiplied by on its way into the velocity, or into the first moment.
    6 FACTOR_1 factor_1: f32,
    /// The second of Adam's betas.
    7 BETA_2 beta_2: f32,
    /// What the gradient's square is multiplied by on its way into the second moment.
    8 FACTOR_2 factor_2: f32,
    /// `Adam`: what the first moment is multiplied by. `AdamW`: what it is divided by.
    9 CORRECTION_1 correction_1: f32,
    /// `AdamW`: what the second moment is divided by.
    10 CORRECTION_2 correction_2: f32,
    /// What is added to the root of the second moment.
    11 EPSILON epsilon: f32,
}

impl UpdateRule {
    /// Tensors of state that it keeps of a parameter, all in f32.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd { momentum, .. } => momentum.into(),
            Self::Adam { amsgrad } | Self::AdamW { amsgrad, .. } => 2 + usize::from(amsgrad),
        }
    }

    /// Which rule it is, with its flags, as a number.
    #[cfg(any(feature = "cubecl", feature = "flex", feature = "router"))]
    pub(crate) fn number(self) -> u8 {
        let (rule, first, second) = match self {
            Self::Sgd { momentum, nesterov } => (0, momentum, nesterov),
            Self::Adam { amsgrad } => (1, amsgrad, false),
            Self::AdamW { amsgrad, cautious } => (2, amsgrad, cautious),
        };
        4 * rule + 2 * u8::from(first) + u8::from(second)
    }

    /// The rule of a [`number`](Self::number).
    #[cfg(any(feature = "cubecl", feature = "flex", feature = "router"))]
    #[inline(always)]
    pub(crate) fn of_number(number: u8) -> Self {
        let (momentum, nesterov) = (number & 2 != 0, number & 1 != 0);
        let (amsgrad, cautious) = (momentum, nesterov);
        match number / 4 {
            0 => Self::Sgd { momentum, nesterov },
            1 => Self::Adam { amsgrad },
            _ => Self::AdamW { amsgrad, cautious },
        }
    }

    /// Tensors that a parameter of this dtype has in the list of [`update`](crate::update): gradient, parameter, master, states.
    pub(crate) fn tensors(self, parameter: DType) -> usize {
        2 + usize::from(has_master(parameter)) + self.states()
    }

    /// The tensors of each parameter, which follow one another in a list. Those of the last may not be all.
    pub(crate) fn parameters<T>(
        self,
        list: impl IntoIterator<Item = T>,
        dtype: impl Fn(&T) -> DType,
    ) -> Vec<Vec<T>> {
        let mut list: VecDeque<T> = list.into_iter().collect();
        let own = || {
            let count = self.tensors(dtype(list.get(1)?)).min(list.len());
            Some(list.drain(..count).collect())
        };
        iter::from_fn(own).collect()
    }
}

/// Whether a parameter has a copy in f32, of which it is the rounded image.
pub(crate) fn has_master(parameter: DType) -> bool {
    matches!(parameter, DType::F16 | DType::BF16)
}

/// Of `values`, the first is the parameter, and the others are its states: before, and then after.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn step(rule: UpdateRule, row: &[f32], gradient: f32, values: &mut [f32]) {
    let parameter = values[0];
    let scaled = gradient * row[column::SCALE];
    match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let mut gradient = penalized(row, scaled, parameter);
            if momentum {
                let added = gradient * row[column::FACTOR_1];
                let velocity = added + values[1] * row[column::BETA_1];
                let velocity = select(row[column::FRESH] != 0.0f32, gradient, velocity);
                values[1] = velocity;
                if nesterov {
                    gradient += velocity * row[column::BETA_1];
                } else {
                    gradient = velocity;
                }
            }
            values[0] = parameter - gradient * row[column::LR];
        }
        UpdateRule::Adam { amsgrad } => {
            let gradient = penalized(row, scaled, parameter);
            let second = moments(row, gradient, values, amsgrad);
            let root = second.sqrt() + row[column::EPSILON];
            let delta = values[1] * row[column::CORRECTION_1] / root;
            values[0] = parameter - delta * row[column::LR];
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let second = moments(row, scaled, values, amsgrad);
            let root = (second / row[column::CORRECTION_2]).sqrt() + row[column::EPSILON];
            let delta = values[1] / row[column::CORRECTION_1] / root;
            let mut decayed = parameter * row[column::DECAY];
            if cautious {
                let first = values[1];
                let grows = select(parameter >= 0.0f32, first < 0.0f32, first >= 0.0f32);
                let kept = grows || row[column::DECAY] == 0.0f32;
                decayed = select(kept, parameter, parameter - decayed);
            }
            values[0] = decayed - delta * row[column::LR];
        }
    }
}

/// The gradient with the penalty of the parameter.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
fn penalized(row: &[f32], gradient: f32, parameter: f32) -> f32 {
    let decay = row[column::DECAY];
    select(decay != 0.0f32, parameter * decay + gradient, gradient)
}

/// Moves both moments, and gives the second one that counts.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
fn moments(row: &[f32], gradient: f32, values: &mut [f32], amsgrad: bool) -> f32 {
    let fresh = row[column::FRESH] != 0.0f32;
    let added = gradient * row[column::FACTOR_1];
    values[1] = select(fresh, added, values[1] * row[column::BETA_1] + added);
    let added = gradient * gradient * row[column::FACTOR_2];
    let mut second = select(fresh, added, values[2] * row[column::BETA_2] + added);
    values[2] = second;
    if amsgrad {
        let largest = values[3];
        second = select(fresh || largest < second, second, largest);
        values[3] = second;
    }
    second
}

/// As CubeCL's.
#[cfg(not(feature = "cubecl"))]
pub(crate) fn select<T>(condition: bool, then: T, or_else: T) -> T {
    if condition { then } else { or_else }
}
