//! The step of an optimizer: one pass over a parameter and all that belongs to it.
//!
//! The operations are Burn's, one by one, and each is rounded to f32: nothing here may be contracted to an FMA.

use burn::tensor::{DType, bf16, f16};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{
    PARALLEL,
    cpu::{Cpu, LANES, Work, run},
    pass::{is_whole, padded},
    value::Value,
};
use crate::{
    schedule::words_of,
    update::{ROW, UpdateRow, UpdateRule},
};

/// Values that one thread takes at a time.
const CHUNK: usize = 1 << 15;
/// Values that are widened, stepped and rounded while they are in the first cache.
const BLOCK: usize = 32 * LANES;
/// The most states that a rule has.
const STATES: usize = 3;

/// As [`Job::Update`](crate::Job::Update).
pub(super) fn update(mut tensors: Vec<FlexTensor>, rule: UpdateRule) -> Vec<FlexTensor> {
    let rows = words_of(&tensors.pop().expect("the rows are last").into_data());
    let mut tensors = tensors.into_iter();
    let next = |row: &[u32]| {
        let (gradient, parameter) = (tensors.next()?, tensors.next()?);
        let others = rule.tensors(parameter.dtype()) - 2;
        let mut written = vec![parameter];
        written.extend(tensors.by_ref().take(others));
        Some(Parameter::new(UpdateRow::of(row), gradient, written))
    };
    let mut parameters: Vec<_> = rows.chunks_exact(ROW).map_while(next).collect();
    let taken = || parameters.iter().filter(|parameter| parameter.taken());
    let values = taken().map(|parameter| parameter.gradient.layout().num_elements());
    let parallel = values.sum::<usize>() >= PARALLEL;
    let taken = parameters.iter_mut().filter(|parameter| parameter.taken());
    let chunks: Vec<Chunk> = taken.flat_map(|parameter| parameter.chunks(rule)).collect();
    match parallel {
        true => chunks.into_par_iter().for_each(run),
        false => chunks.into_iter().for_each(run),
    }
    let written = parameters.into_iter().map(|parameter| parameter.written);
    written.flatten().collect()
}

/// A parameter and all that belongs to it.
struct Parameter {
    row: UpdateRow,
    gradient: FlexTensor,
    /// The parameter, its master if it has one, and its states.
    written: Vec<FlexTensor>,
}

impl Parameter {
    fn new(row: UpdateRow, gradient: FlexTensor, written: Vec<FlexTensor>) -> Self {
        let mut parameter = Self {
            row,
            gradient,
            written,
        };
        if parameter.taken() {
            parameter.align();
        }
        parameter
    }

    fn taken(&self) -> bool {
        self.row.taken != 0.0
    }

    /// Has the values of all tensors lie in one order, and nothing between them.
    fn align(&mut self) {
        let strides = self.gradient.layout().strides().to_vec();
        let mut all = std::iter::once(&mut self.gradient).chain(&mut self.written);
        if !all.all(|tensor| tensor.layout().strides() == strides && whole(tensor)) {
            let all = std::iter::once(&mut self.gradient).chain(&mut self.written);
            all.for_each(|tensor| *tensor = tensor.to_contiguous());
        }
    }

    /// What threads share. Tensors that somebody else holds are copied first.
    fn chunks(&mut self, rule: UpdateRule) -> Vec<Chunk<'_>> {
        let (mut written, row) = (self.written.iter_mut(), &self.row);
        let mut next = || written.next().expect("as many tensors as the rule has");
        let parameter = next();
        let dtype = parameter.dtype();
        let (mut half, mut real): (&mut [u16], &mut [f32]) = match dtype {
            DType::F16 => (
                bytemuck::cast_slice_mut(parameter.storage_mut::<f16>()),
                next().storage_mut(),
            ),
            DType::BF16 => (
                bytemuck::cast_slice_mut(parameter.storage_mut::<bf16>()),
                next().storage_mut(),
            ),
            _ => (&mut [], parameter.storage_mut()),
        };
        let mut states: [&mut [f32]; STATES] = Default::default();
        for (state, tensor) in states.iter_mut().zip(written) {
            *state = tensor.storage_mut();
        }
        let take = |at: usize| {
            let length = CHUNK.min(real.len());
            (length > 0).then(|| Chunk {
                rule,
                row,
                gradient: &self.gradient,
                at: at * CHUNK,
                dtype,
                half: split(&mut half, length),
                real: split(&mut real, length),
                states: states.each_mut().map(|state| split(state, length)),
            })
        };
        (0..).map_while(take).collect()
    }
}

/// The first values of a slice, which keeps the others; nothing of one that is empty.
fn split<'a, T>(slice: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let length = length.min(slice.len());
    slice.split_off_mut(..length).unwrap_or_default()
}

fn whole(tensor: &FlexTensor) -> bool {
    match tensor.dtype() {
        DType::F32 => is_whole::<f32>(tensor),
        _ => is_whole::<u16>(tensor),
    }
}

/// Values of one parameter that one thread steps.
struct Chunk<'a> {
    rule: UpdateRule,
    row: &'a UpdateRow,
    /// All of the parameter's.
    gradient: &'a FlexTensor,
    /// Of the gradient's first value here.
    at: usize,
    /// Of the parameter.
    dtype: DType,
    /// The parameter, if it is in half precision.
    half: &'a mut [u16],
    /// The parameter, or its master.
    real: &'a mut [f32],
    /// Those that the rule has; the others are empty.
    states: [&'a mut [f32]; STATES],
}

impl Work for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<C: Cpu>(mut self, cpu: C) {
        let mut wide = [0.0; BLOCK];
        for at in (0..self.real.len()).step_by(BLOCK) {
            let block = at..self.real.len().min(at + BLOCK);
            let wide = &mut wide[..block.len()];
            let place = self.at + block.start..self.at + block.end;
            let gradient = match self.gradient.dtype() {
                DType::F32 => &self.gradient.storage()[place],
                DType::F16 => widen::<f16, C>(cpu, &self.gradient.storage()[place], wide),
                _ => widen::<bf16, C>(cpu, &self.gradient.storage()[place], wide),
            };
            let real = &mut self.real[block.clone()];
            let half = self.half.get_mut(block.clone()).unwrap_or_default();
            let states = (self.states.each_mut())
                .map(|state| state.get_mut(block.clone()).unwrap_or_default());
            match self.dtype {
                DType::F16 => follow::<f16, C>(cpu, real, half),
                DType::BF16 => follow::<bf16, C>(cpu, real, half),
                _ => {}
            }
            step(self.rule, *self.row, gradient, real, states);
            match self.dtype {
                DType::F16 => round::<f16, C>(cpu, real, half),
                DType::BF16 => round::<bf16, C>(cpu, real, half),
                _ => {}
            }
        }
    }
}

#[inline(always)]
fn widen<'a, T: Value<Real = f32>, C: Cpu>(cpu: C, values: &[T], wide: &'a mut [f32]) -> &'a [f32] {
    by_group(values, wide, |values, wide| *wide = T::widen(cpu, values));
    wide
}

/// Gives masters the values of parameters that are no longer their rounded images.
#[inline(always)]
fn follow<T: Value<Real = f32>, C: Cpu>(cpu: C, masters: &mut [f32], parameters: &[u16]) {
    by_group::<T, _>(
        bytemuck::cast_slice(parameters),
        masters,
        |parameters, masters| {
            let image = T::widen(cpu, &T::narrow(cpu, *masters));
            let mut followed = T::widen(cpu, parameters);
            for i in 0..LANES {
                if image[i] == followed[i] {
                    followed[i] = masters[i];
                }
            }
            *masters = followed;
        },
    );
}

#[inline(always)]
fn round<T: Value<Real = f32>, C: Cpu>(cpu: C, masters: &[f32], parameters: &mut [u16]) {
    by_group::<_, T>(
        masters,
        bytemuck::cast_slice_mut(parameters),
        |masters, parameters| {
            *parameters = T::narrow(cpu, *masters);
        },
    );
}

#[inline(always)]
fn by_group<S: Value, T: Value>(
    source: &[S],
    target: &mut [T],
    work: impl Fn(&[S; LANES], &mut [T; LANES]),
) {
    let (sources, source) = source.as_chunks();
    let (targets, target) = target.as_chunks_mut();
    for (source, target) in sources.iter().zip(targets) {
        work(source, target);
    }
    if !target.is_empty() {
        let mut group = padded(target);
        work(&padded(source), &mut group);
        target.copy_from_slice(&group[..target.len()]);
    }
}

/// Steps values in f32.
#[inline(always)]
fn step(
    rule: UpdateRule,
    row: UpdateRow,
    gradient: &[f32],
    parameter: &mut [f32],
    [first, second, third]: [&mut [f32]; STATES],
) {
    match rule {
        UpdateRule::Sgd {
            momentum: false, ..
        } => each(gradient, parameter, [], |g, p, []| {
            (p - row.penalized(g, p) * row.lr, [])
        }),
        UpdateRule::Sgd {
            momentum: true,
            nesterov,
        } => each(gradient, parameter, [first], |g, p, [v]| {
            let g = row.penalized(g, p);
            let v = match row.is_fresh() {
                true => g,
                false => g * row.factor_1 + v * row.beta_1,
            };
            let g = if nesterov { v * row.beta_1 + g } else { v };
            (p - g * row.lr, [v])
        }),
        UpdateRule::Adam { amsgrad: false } => {
            each(gradient, parameter, [first, second], |g, p, [m, v]| {
                let [m, v] = row.moments(row.penalized(g, p), [m, v]);
                (row.adam(p, m, v), [m, v])
            })
        }
        UpdateRule::Adam { amsgrad: true } => each(
            gradient,
            parameter,
            [first, second, third],
            |g, p, [m, v, x]| {
                let [m, v] = row.moments(row.penalized(g, p), [m, v]);
                let x = row.largest(x, v);
                (row.adam(p, m, x), [m, v, x])
            },
        ),
        UpdateRule::AdamW {
            amsgrad: false,
            cautious,
        } => each(gradient, parameter, [first, second], |g, p, [m, v]| {
            let [m, v] = row.moments(g * row.scale, [m, v]);
            (row.adam_w(cautious, p, m, v), [m, v])
        }),
        UpdateRule::AdamW {
            amsgrad: true,
            cautious,
        } => each(
            gradient,
            parameter,
            [first, second, third],
            |g, p, [m, v, x]| {
                let [m, v] = row.moments(g * row.scale, [m, v]);
                let x = row.largest(x, v);
                (row.adam_w(cautious, p, m, x), [m, v, x])
            },
        ),
    }
}

/// Burn's formulas, for one value.
impl UpdateRow {
    #[inline(always)]
    fn is_fresh(&self) -> bool {
        self.fresh != 0.0
    }

    /// The gradient with the penalty of the parameter.
    #[inline(always)]
    fn penalized(&self, g: f32, p: f32) -> f32 {
        let g = g * self.scale;
        match self.decay != 0.0 {
            true => p * self.decay + g,
            false => g,
        }
    }

    #[inline(always)]
    fn moments(&self, g: f32, [m, v]: [f32; 2]) -> [f32; 2] {
        let (first, second) = (g * self.factor_1, g * g * self.factor_2);
        match self.is_fresh() {
            true => [first, second],
            false => [m * self.beta_1 + first, v * self.beta_2 + second],
        }
    }

    #[inline(always)]
    fn largest(&self, x: f32, v: f32) -> f32 {
        if self.is_fresh() || x < v { v } else { x }
    }

    #[inline(always)]
    fn adam(&self, p: f32, m: f32, v: f32) -> f32 {
        let delta = m * self.correction_1 / (v.sqrt() + self.epsilon);
        p - delta * self.lr
    }

    #[inline(always)]
    fn adam_w(&self, cautious: bool, p: f32, m: f32, v: f32) -> f32 {
        let delta = m / self.correction_1 / ((v / self.correction_2).sqrt() + self.epsilon);
        let decayed = match cautious {
            true if self.decay == 0.0 || (p >= 0.0) != (m >= 0.0) => p,
            true => p - p * self.decay,
            false => p * self.decay,
        };
        decayed - delta * self.lr
    }
}

/// Steps all values, group by group and then those that fill no group.
#[inline(always)]
fn each<const N: usize>(
    gradient: &[f32],
    parameter: &mut [f32],
    mut states: [&mut [f32]; N],
    step: impl Fn(f32, f32, [f32; N]) -> (f32, [f32; N]),
) {
    let whole = gradient.len() / LANES * LANES;
    let (gradients, gradient) = gradient.split_at(whole);
    let (parameters, parameter) = parameter.split_at_mut(whole);
    let firsts = states.each_mut().map(|state| split(state, whole));
    groups::<LANES, N>(gradients, parameters, firsts, &step);
    groups::<1, N>(gradient, parameter, states, &step);
}

#[inline(always)]
fn groups<const L: usize, const N: usize>(
    gradient: &[f32],
    parameter: &mut [f32],
    states: [&mut [f32]; N],
    step: &impl Fn(f32, f32, [f32; N]) -> (f32, [f32; N]),
) {
    let states = states.map(|state| state.as_chunks_mut::<L>().0);
    let groups = gradient.as_chunks::<L>().0.iter();
    for (at, (g, p)) in groups.zip(parameter.as_chunks_mut::<L>().0).enumerate() {
        let mut group = *p;
        let mut state = states.each_ref().map(|state| state[at]);
        for i in 0..L {
            let (parameter, stepped) = step(g[i], group[i], std::array::from_fn(|n| state[n][i]));
            group[i] = parameter;
            for n in 0..N {
                state[n][i] = stepped[n];
            }
        }
        *p = group;
        for n in 0..N {
            states[n][at] = state[n];
        }
    }
}
