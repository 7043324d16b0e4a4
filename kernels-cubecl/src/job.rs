//! The jobs that backends do: what each takes and gives. A new one is here, in a file with its kernel, in the tables of [`Kernels`], and in
//! `backends/custom.rs`, which says how it is queued.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, FloatDType};

use crate::UpdateRule;

/// What a backend does to a list of float tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Job {
    /// Multiplies all tensors but the last by the last, of shape `[1]` and dtype f32, and measures the products.
    ///
    /// Gives the products, of the tensors' shapes and in f32 (f64 for f64), and then the rows that
    /// [`Status`](crate::Status) describes, one for each tensor. Tensors of the product's dtype that nobody else holds
    /// are overwritten; other products are new.
    Unscale {
        /// Products have their tensors' dtypes, and are measured after they were rounded to them.
        keep_dtype: bool,
        /// Magnitudes from here on are counted.
        edge: f32,
    },
    /// Measures all tensors and writes none. Gives the rows of [`Status`](crate::Status).
    Inspect {
        /// Magnitudes from here on are counted.
        edge: f32,
    },
    /// Counts the values of all tensors by binary exponent. Gives the counts that [`Histogram`](crate::Histogram)
    /// describes.
    Histogram,
    /// What is done value by value.
    Elementwise(Elementwise),
    /// The step of an optimizer, as [`update`](crate::update) describes it; the rows are the last tensor.
    Update {
        /// Whose step.
        rule: UpdateRule,
    },
    /// Moves the loss scale of the first tensor, the words of a [`ScaleState`](crate::ScaleState), after a step with gradients of
    /// the rows in the second. If there is a third, the rows of what came to the border, and its first row counts values that were not
    /// finite, the scale stays; so it does if there is a fourth, the rows of what left half precision again, none of these counts any,
    /// and nothing overflowed at the border. Gives the words of the next state.
    Advance {
        /// What overflows at the border before the scale has multiplied it: from here on, over the scale.
        largest: f32,
    },
    /// Gives the factors by which gradients are clipped, of a [`ClipTable`](crate::ClipTable) and the rows of [`Status`](crate::Status).
    Clip,
    /// Gives the rows of an update that the state in the second tensor decides, of what the first has, flat: a row, a time and a gradient for
    /// each parameter, as [`DeviceScale::send`](crate::DeviceScale::send) describes them. If there is a third, it has a factor for each
    /// gradient.
    Decide {
        /// Whose step.
        rule: UpdateRule,
    },
}

/// What is done value by value, of which Fusion makes a part of the kernels around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elementwise {
    /// Gives `keep` times the first tensor and `add` times the second, which has its shape. The first is f32, or f64 on
    /// Flex, and is overwritten where nobody else holds it. If there is a third, of shape `[1]` and dtype f32, and it is not 0, gives the first
    /// as it is.
    Blend {
        /// Of the first tensor.
        keep: f64,
        /// Of the second.
        add: f64,
    },
    /// Widens the first tensor, of f16, bf16 or f32, to f32, multiplies it by `factor` and rounds it to `dtype`. What is not
    /// finite stays so. With a second tensor, of shape `[1]` and dtype f32, by the product of `factor` and that, in f32.
    MulCast {
        /// f16, bf16 or f32.
        dtype: FloatDType,
        /// Rounded to f32.
        factor: f64,
    },
}

impl Elementwise {
    /// Does it by the function for it.
    pub(crate) fn run<T>(self, tensors: Vec<T>, blend: Blend<T>, mul_cast: MulCast<T>) -> T {
        match self {
            Self::Blend { keep, add } => {
                let (both, mut found_inf) = taken(tensors);
                blend(both, ([keep, add], found_inf.pop()))
            }
            Self::MulCast { dtype, factor } => {
                let ([tensor], mut scale) = taken(tensors);
                mul_cast(tensor, dtype, (factor, scale.pop()))
            }
        }
    }
}

/// What a pass multiplies by, and whether products keep their tensors' dtypes; none to measure alone.
pub(crate) type Scaling<T> = Option<(T, bool)>;

/// The dtype of a pass's product, and of what is computed on the way where that is not kept.
pub(crate) fn product_dtype(dtype: DType, keep_dtype: bool) -> DType {
    match keep_dtype || dtype == DType::F64 {
        true => dtype,
        false => DType::F32,
    }
}

/// What a cast multiplies by: a number, and the value of a tensor if there is one.
pub(crate) type Scale<T> = (f64, Option<T>);

/// Of target and source; and what is above 0 where the target stays.
pub(crate) type Weights<T> = ([f64; 2], Option<T>);

/// Of target and source.
pub(crate) type Blend<T> = fn([T; 2], Weights<T>) -> T;

pub(crate) type MulCast<T> = fn(T, FloatDType, Scale<T>) -> T;

/// What a backend has kernels for.
pub(crate) struct Kernels<T> {
    /// Of tensors and the edge.
    pub(crate) pass: fn(Vec<T>, Scaling<T>, f32) -> Vec<T>,
    pub(crate) histogram: fn(Vec<T>) -> T,
    pub(crate) blend: Blend<T>,
    pub(crate) mul_cast: MulCast<T>,
    /// Of the tensors of each parameter, and the rows.
    pub(crate) update: fn(Vec<Vec<T>>, T, UpdateRule) -> Vec<T>,
    /// Of state and rows, those of the border and of what left it, and what overflows there.
    pub(crate) advance: fn([T; 2], Vec<T>, f32) -> T,
    /// Of table and rows.
    pub(crate) clip: fn([T; 2]) -> T,
    /// Of what is undecided and the state, and the factors of clipping.
    pub(crate) decide: fn([T; 2], Option<T>, UpdateRule) -> T,
}

impl<T: TensorMetadata> Kernels<T> {
    pub(crate) fn run(&self, mut tensors: Vec<T>, job: Job) -> Vec<T> {
        match job {
            Job::Unscale { keep_dtype, edge } => {
                let inverse = tensors.pop().expect("the inverse is last");
                (self.pass)(tensors, Some((inverse, keep_dtype)), edge)
            }
            Job::Inspect { edge } => (self.pass)(tensors, None, edge),
            Job::Histogram => vec![(self.histogram)(tensors)],
            Job::Elementwise(what) => vec![what.run(tensors, self.blend, self.mul_cast)],
            Job::Update { rule } => {
                let rows = tensors.pop().expect("the rows are last");
                (self.update)(rule.parameters(tensors, T::dtype), rows, rule)
            }
            Job::Advance { largest } => {
                let (both, border) = taken(tensors);
                vec![(self.advance)(both, border, largest)]
            }
            Job::Clip => vec![(self.clip)(taken(tensors).0)],
            Job::Decide { rule } => {
                let (both, mut factors) = taken(tensors);
                vec![(self.decide)(both, factors.pop(), rule)]
            }
        }
    }
}

/// The tensors that a job takes in any case, and those that may follow.
fn taken<T, const N: usize>(mut tensors: Vec<T>) -> ([T; N], Vec<T>) {
    let rest = tensors.split_off(N);
    let first = tensors.try_into();
    let first = first.unwrap_or_else(|_| panic!("as many tensors as the job takes"));
    (first, rest)
}
