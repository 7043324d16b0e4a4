use burn::{
    backend::{Flex, tensor::FloatTensor},
    tensor::{DType, Element, TensorData, bf16, f16},
};
use burn_flex::FlexTensor;
use bytemuck::Pod;
use rayon::prelude::*;

use super::{BLOCK, CHUNK, Halves, widen};
use crate::histogram::{BINS, bin, bin_f64};

/// Tables that take turns, so that a value does not wait for the count of the one before it.
const TABLES: usize = 4;

/// Counts by exponent.
pub(super) type Counts = [u64; BINS];

pub(super) fn count(tensor: FloatTensor<Flex>) -> Counts {
    let tensor = tensor.to_contiguous();
    match tensor.dtype() {
        DType::F32 => over(&tensor, each::<f32>),
        DType::F64 => over(&tensor, each::<f64>),
        DType::F16 => over(&tensor, each_half::<f16>),
        DType::BF16 => over(&tensor, each_half::<bf16>),
        dtype => panic!("gradients are floats, not {dtype:?}"),
    }
}

pub(super) fn words(counts: Vec<Counts>) -> FlexTensor {
    let total = counts.into_iter().fold([0; BINS], add);
    let words = total
        .into_iter()
        .flat_map(|count| [count as i32, (count >> 32) as i32]);
    FlexTensor::from_data(TensorData::new(words.collect::<Vec<i32>>(), [2 * BINS]))
}

fn add(mut a: Counts, b: Counts) -> Counts {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
}

fn over<E: Element + Pod + Sync>(tensor: &FlexTensor, work: fn(&[E]) -> Counts) -> Counts {
    let values = tensor
        .as_slice::<E>()
        .expect("contiguous, and of this dtype");
    if values.len() <= CHUNK {
        return work(values);
    }
    let counts = values.par_chunks(CHUNK).map(work);
    counts.reduce(|| [0; BINS], add)
}

fn each<T: Exponent>(values: &[T]) -> Counts {
    let mut tables = [[0u32; BINS]; TABLES];
    let (lines, rest) = values.as_chunks::<TABLES>();
    for line in lines {
        for (table, value) in tables.iter_mut().zip(line) {
            table[value.bin()] += 1;
        }
    }
    for value in rest {
        tables[0][value.bin()] += 1;
    }
    sum(&tables)
}

/// A chunk has fewer values than a `u32` can count.
fn sum(tables: &[[u32; BINS]]) -> Counts {
    let mut counts = [0; BINS];
    for table in tables {
        (counts.iter_mut().zip(table)).for_each(|(sum, count)| *sum += u64::from(*count));
    }
    counts
}

fn each_half<H: Element + Pod>(values: &[H]) -> Counts
where
    [H]: Halves,
{
    let mut wide = [0f32; BLOCK];
    let mut counts = [0; BINS];
    for block in values.chunks(BLOCK) {
        let wide = &mut wide[..block.len()];
        widen(block, wide);
        counts = add(counts, each::<f32>(wide));
    }
    counts
}

trait Exponent {
    /// Where a value is counted.
    fn bin(&self) -> usize;
}

impl Exponent for f32 {
    #[inline(always)]
    fn bin(&self) -> usize {
        let magnitude = self.to_bits() & 0x7FFF_FFFF;
        let exponent = (magnitude >> 23) as i32 - 127;
        bin(magnitude == 0, magnitude < 0x7F80_0000, exponent)
    }
}

impl Exponent for f64 {
    #[inline(always)]
    fn bin(&self) -> usize {
        bin_f64(*self)
    }
}
