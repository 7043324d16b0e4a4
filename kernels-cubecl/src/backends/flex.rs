//! Flex: one pass in SIMD, split over threads where a tensor is large enough to pay for it.

use burn::{
    backend::{
        Flex,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Element, TensorData, bf16, f16},
};
use burn_flex::FlexTensor;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use pulp::Arch;
use rayon::prelude::*;

use crate::{
    ops::{AmpOps, TensorVec, UnscaledVec},
    status::{Row, Squares, WORDS},
};

/// Values that one thread takes at a time: enough to be worth the hand-over, few enough to share evenly.
const CHUNK: usize = 1 << 18;
/// Values that are converted or squared at a time: they stay in the first-level cache.
const BLOCK: usize = 1 << 10;

impl AmpOps for Flex {
    fn amp_unscale(tensors: TensorVec<Self>, inverse: FloatTensor<Self>) -> UnscaledVec<Self> {
        let inverse = inverse.into_data().iter::<f32>().next().unwrap_or(1.0);
        let (tensors, rows) = (tensors.tensors.into_iter())
            .map(|tensor| unscale(tensor, inverse))
            .unzip();
        UnscaledVec {
            tensors: TensorVec { tensors },
            status: status(rows),
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>) -> IntTensor<Self> {
        status(tensors.tensors.into_iter().map(inspect).collect())
    }
}

fn status(rows: Vec<Row>) -> FlexTensor {
    let words: Vec<i32> = rows
        .iter()
        .flat_map(Row::words)
        .map(|word| word as i32)
        .collect();
    let length = rows.len() * WORDS;
    FlexTensor::from_data(TensorData::new(words, [length]))
}

fn unscale(tensor: FlexTensor, inverse: f32) -> (FlexTensor, Row) {
    match tensor.dtype() {
        DType::F32 => in_place(tensor, inverse),
        DType::F64 => in_place(tensor, f64::from(inverse)),
        DType::F16 => widened::<f16>(&tensor, inverse),
        DType::BF16 => widened::<bf16>(&tensor, inverse),
        dtype => panic!("gradients are floats, not {dtype:?}"),
    }
}

fn inspect(tensor: FlexTensor) -> Row {
    match tensor.dtype() {
        DType::F32 => read::<f32>(&tensor),
        DType::F64 => read::<f64>(&tensor),
        DType::F16 => read_half::<f16>(&tensor),
        DType::BF16 => read_half::<bf16>(&tensor),
        dtype => panic!("gradients are floats, not {dtype:?}"),
    }
}

/// Overwrites a buffer that is ours alone; any other is written anew.
fn in_place<T: Real>(mut tensor: FlexTensor, inverse: T) -> (FlexTensor, Row) {
    let whole = tensor.layout().is_contiguous()
        && tensor.layout().start_offset() == 0
        && tensor.bytes().len() == tensor.layout().num_elements() * size_of::<T>();
    if whole && let Some(values) = tensor.try_storage_mut::<T>() {
        let row = over_mut(values, |chunk| {
            let mut row = Row::default();
            for block in chunk.chunks_mut(BLOCK) {
                T::scale(block, inverse, &mut row);
            }
            row
        });
        return (tensor, row);
    }
    let shape = tensor.layout().shape().clone();
    let tensor = tensor.to_contiguous();
    let source = tensor
        .as_slice::<T>()
        .expect("contiguous, and of this dtype");
    let mut target = vec![T::default(); source.len()];
    let row = over_pair(source, &mut target, |source, target| {
        let mut row = Row::default();
        for (source, target) in source.chunks(BLOCK).zip(target.chunks_mut(BLOCK)) {
            target.copy_from_slice(source);
            T::scale(target, inverse, &mut row);
        }
        row
    });
    (FlexTensor::from_data(TensorData::new(target, shape)), row)
}

fn widened<H>(tensor: &FlexTensor, inverse: f32) -> (FlexTensor, Row)
where
    H: Element + Pod + Sync,
    [H]: HalfFloatSliceExt,
{
    let shape = tensor.layout().shape().clone();
    let tensor = tensor.to_contiguous();
    let source = tensor
        .as_slice::<H>()
        .expect("contiguous, and of this dtype");
    let mut target = vec![0f32; source.len()];
    let row = over_pair(source, &mut target, |source, target| {
        let mut row = Row::default();
        for (source, target) in source.chunks(BLOCK).zip(target.chunks_mut(BLOCK)) {
            source.convert_to_f32_slice(target);
            f32::scale(target, inverse, &mut row);
        }
        row
    });
    (FlexTensor::from_data(TensorData::new(target, shape)), row)
}

fn read<T: Real>(tensor: &FlexTensor) -> Row {
    let tensor = tensor.to_contiguous();
    let values = tensor
        .as_slice::<T>()
        .expect("contiguous, and of this dtype");
    over(values, |chunk| {
        let mut row = Row::default();
        for block in chunk.chunks(BLOCK) {
            T::observe(block, &mut row);
        }
        row.before = row.after;
        row
    })
}

fn read_half<H>(tensor: &FlexTensor) -> Row
where
    H: Element + Pod + Sync,
    [H]: HalfFloatSliceExt,
{
    let tensor = tensor.to_contiguous();
    let values = tensor
        .as_slice::<H>()
        .expect("contiguous, and of this dtype");
    over(values, |chunk| {
        let mut row = Row::default();
        let mut wide = [0f32; BLOCK];
        for block in chunk.chunks(BLOCK) {
            let wide = &mut wide[..block.len()];
            block.convert_to_f32_slice(wide);
            f32::observe(wide, &mut row);
        }
        row.before = row.after;
        row
    })
}

fn over<T: Sync>(values: &[T], work: impl Fn(&[T]) -> Row + Send + Sync) -> Row {
    if values.len() <= CHUNK {
        return work(values);
    }
    total(values.par_chunks(CHUNK).map(work).collect())
}

fn over_mut<T: Send>(values: &mut [T], work: impl Fn(&mut [T]) -> Row + Send + Sync) -> Row {
    if values.len() <= CHUNK {
        return work(values);
    }
    total(values.par_chunks_mut(CHUNK).map(work).collect())
}

fn over_pair<S: Sync, T: Send>(
    source: &[S],
    target: &mut [T],
    work: impl Fn(&[S], &mut [T]) -> Row + Send + Sync,
) -> Row {
    if source.len() <= CHUNK {
        return work(source, target);
    }
    let rows = (source.par_chunks(CHUNK))
        .zip(target.par_chunks_mut(CHUNK))
        .map(|(source, target)| work(source, target))
        .collect();
    total(rows)
}

/// Adds up in the order of the chunks: the same sum on every run, whichever thread was first.
fn total(rows: Vec<Row>) -> Row {
    rows.into_iter().fold(Row::default(), join)
}

fn join(a: Row, b: Row) -> Row {
    Row {
        elements: a.elements + b.elements,
        before: a.before + b.before,
        after: a.after + b.after,
        zeros: a.zeros + b.zeros,
        max_abs: a.max_abs.max(b.max_abs),
        squares: Squares {
            small: a.squares.small + b.squares.small,
            medium: a.squares.medium + b.squares.medium,
            big: a.squares.big + b.squares.big,
        },
    }
}

/// f32 or f64: what gradients are unscaled in.
trait Real: Element + Pod + Send + Sync + Default {
    /// Multiplies a block and adds what is found to the row, values before scaling included.
    fn scale(block: &mut [Self], inverse: Self, row: &mut Row);

    /// Adds what is found in a block to the row.
    fn observe(block: &[Self], row: &mut Row);
}

/// Independent sums, so that the compiler can keep them side by side in registers.
const LANES: usize = 16;

impl Real for f32 {
    fn scale(block: &mut [f32], inverse: f32, row: &mut Row) {
        Arch::new().dispatch(|| {
            let before: u32 = block.iter().map(|value| non_finite(*value)).sum();
            for value in block.iter_mut() {
                *value *= inverse;
            }
            row.before += u64::from(before);
        });
        Self::observe(block, row);
    }

    fn observe(block: &[f32], row: &mut Row) {
        Arch::new().dispatch(
            #[inline(always)]
            || {
                let (mut bad, mut zeros, mut max) = ([0u32; LANES], [0u32; LANES], [0u32; LANES]);
                let mut squares = [0f64; LANES];
                let mut lanes = block.chunks_exact(LANES);
                let mut add = |lane: usize, value: f32| {
                    let bits = value.to_bits() & 0x7FFF_FFFF;
                    let finite = bits < 0x7F80_0000;
                    let magnitude = if finite { bits } else { 0 };
                    bad[lane] += u32::from(!finite);
                    zeros[lane] += u32::from(bits == 0);
                    max[lane] = max[lane].max(magnitude);
                    // Squares of f32 values, and sums of them, stay well inside f64.
                    let value = f64::from(f32::from_bits(magnitude));
                    squares[lane] += value * value;
                };
                for values in &mut lanes {
                    for lane in 0..LANES {
                        add(lane, values[lane]);
                    }
                }
                for (lane, value) in lanes.remainder().iter().enumerate() {
                    add(lane, *value);
                }
                row.elements += block.len() as u64;
                row.after += u64::from(bad.iter().sum::<u32>());
                row.zeros += u64::from(zeros.iter().sum::<u32>());
                let max = max.iter().max().copied().unwrap_or(0);
                row.max_abs = row.max_abs.max(f64::from(f32::from_bits(max)));
                row.squares.medium += squares.iter().sum::<f64>();
            },
        );
    }
}

#[inline(always)]
fn non_finite(value: f32) -> u32 {
    u32::from(value.to_bits() & 0x7FFF_FFFF >= 0x7F80_0000)
}

impl Real for f64 {
    fn scale(block: &mut [f64], inverse: f64, row: &mut Row) {
        for value in block.iter_mut() {
            row.before += u64::from(!value.is_finite());
            *value *= inverse;
        }
        Self::observe(block, row);
    }

    fn observe(block: &[f64], row: &mut Row) {
        row.elements += block.len() as u64;
        for value in block {
            if !value.is_finite() {
                row.after += 1;
                continue;
            }
            let magnitude = value.abs();
            row.zeros += u64::from(magnitude == 0.0);
            row.max_abs = row.max_abs.max(magnitude);
            if magnitude > Squares::BIG {
                row.squares.big += (magnitude * Squares::BIG_SCALE).powi(2);
            } else if magnitude < Squares::SMALL {
                row.squares.small += (magnitude * Squares::SMALL_SCALE).powi(2);
            } else {
                row.squares.medium += magnitude * magnitude;
            }
        }
    }
}
