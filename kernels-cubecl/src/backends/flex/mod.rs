//! Flex: one pass in SIMD, split over threads where a tensor is large enough to pay for it.

mod blend;
mod cast;
mod histogram;

use burn::{
    backend::{
        Flex,
        ops::FloatTensorOps,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Element, FloatDType, TensorData, bf16, f16},
};
use burn_flex::{FlexTensor, Layout};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt as Halves;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use std::ops::RangeInclusive;

use crate::{
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
    status::{Row, Squares, WORDS, verdict},
};

/// Values that one thread takes at a time: enough to be worth the hand-over, few enough to share evenly.
const CHUNK: usize = 1 << 16;
/// Values that are converted, scaled and measured at a time: they stay in the first-level cache.
const BLOCK: usize = 1 << 10;
/// Lists of fewer values are done before a second thread has woken up.
const PARALLEL: usize = 1 << 15;

impl CastOps for Flex {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        cast::run(tensor, dtype, factor as f32)
    }
}

impl AmpOps for Flex {
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let inverse = inverse.into_data().iter::<f32>().next().unwrap_or(1.0);
        let unscaled = each(tensors.tensors, |tensor| {
            let dtype = tensor.dtype();
            let (mut product, mut row) = unscale(tensor, inverse);
            if keep_dtype && product.dtype() != dtype {
                product = Flex::float_cast(product, dtype.into());
                let before = row.before;
                row = inspect(product.clone());
                row.before = before;
            }
            row.above = above(&product, edge);
            (product, row)
        });
        let (tensors, rows) = unscaled.into_iter().unzip();
        UnscaledVec {
            tensors: TensorVec { tensors },
            status: status(rows),
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
        let look = |tensor: FlexTensor| Row {
            above: above(&tensor, edge),
            ..inspect(tensor)
        };
        status(each(tensors.tensors, look))
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        let words: Vec<u32> = words.into_data().iter::<i32>().map(|w| w as u32).collect();
        FlexTensor::from_data(TensorData::from(verdict(&words)))
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let counts = each(tensors.tensors, histogram::count);
        histogram::words(counts)
    }

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        blend::run(target, source, keep, add)
    }
}

/// Values from `edge` on, and NaN; what is not finite alone is known already.
fn above(tensor: &FlexTensor, edge: f32) -> u64 {
    if edge == f32::INFINITY {
        return 0;
    }
    let values: Vec<f64> = tensor.clone().into_data().iter().collect();
    let reaches = |value: &&f64| value.is_nan() || value.abs() >= f64::from(edge);
    values.iter().filter(reaches).count() as u64
}

/// Works on each tensor of the list, and in the order of the list on the results.
fn each<R: Send>(tensors: Vec<FlexTensor>, work: impl Fn(FlexTensor) -> R + Send + Sync) -> Vec<R> {
    let elements = |tensor: &FlexTensor| tensor.layout().num_elements();
    if tensors.iter().map(elements).sum::<usize>() < PARALLEL {
        return tensors.into_iter().map(work).collect();
    }
    tensors.into_par_iter().map(work).collect()
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
    if !is_whole::<T>(&tensor) {
        // A copy, where it is not contiguous, that is ours alone.
        tensor = tensor.to_contiguous();
    }
    if is_whole::<T>(&tensor)
        && let Some(values) = tensor.try_storage_mut::<T>()
    {
        let row = over_mut(values, |chunk| {
            let mut row = Row::default();
            for block in chunk.chunks_mut(BLOCK) {
                T::scale(block, inverse, &mut row);
            }
            row
        });
        return (tensor, row);
    }
    written::<T, T>(&tensor, |source, target, row| {
        target.copy_from_slice(source);
        T::scale(target, inverse, row);
    })
}

/// Whether the tensor is all of its buffer, in whatever order its dimensions are.
fn is_whole<T>(tensor: &FlexTensor) -> bool {
    let layout = tensor.layout();
    layout.start_offset() == 0
        && tensor.bytes().len() == layout.num_elements() * size_of::<T>()
        && (layout.is_contiguous() || is_dense(layout))
}

fn is_dense(layout: &Layout) -> bool {
    let strides = layout.strides().iter();
    let strides: Option<Vec<usize>> = strides
        .map(|stride| usize::try_from(*stride).ok())
        .collect();
    strides.is_some_and(|strides| burn_std::is_dense(layout.shape(), &strides))
}

fn widened<H>(tensor: &FlexTensor, inverse: f32) -> (FlexTensor, Row)
where
    H: Element + Pod + Sync,
    [H]: Halves,
{
    written(tensor, |source: &[H], target: &mut [f32], row| {
        widen(source, target);
        f32::scale(target, inverse, row);
    })
}

/// A product in new memory, whose values lie in the order in which those of the factor do.
fn written<S: Element + Pod + Sync, T: Element + Pod + Send>(
    tensor: &FlexTensor,
    write: impl Fn(&[S], &mut [T], &mut Row) + Send + Sync,
) -> (FlexTensor, Row) {
    let layout = match is_whole::<S>(tensor) {
        true => tensor.layout().clone(),
        false => Layout::contiguous(tensor.layout().shape().clone()),
    };
    let (target, row) = in_any_order(tensor, |source| anew(source, write));
    let length = target.len();
    let product = FlexTensor::from_data(TensorData::new(target, [length]));
    (product.with_layout(layout), row)
}

/// `half` has f16 instructions of its own; its loop over bf16 becomes SIMD in a dispatch.
fn widen<H>(source: &[H], target: &mut [f32])
where
    [H]: Halves,
{
    Arch::new().dispatch(Widen { source, target });
}

struct Widen<'a, H> {
    source: &'a [H],
    target: &'a mut [f32],
}

impl<H> WithSimd for Widen<'_, H>
where
    [H]: Halves,
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.source.convert_to_f32_slice(self.target);
    }
}

/// A new buffer and what was found in it. Zeros come from the system where it is large, and cost nothing then.
fn anew<S: Sync, T: Pod + Send>(
    source: &[S],
    write: impl Fn(&[S], &mut [T], &mut Row) + Send + Sync,
) -> (Vec<T>, Row) {
    let mut target: Vec<T> = bytemuck::zeroed_vec(source.len());
    let work = |source: &[S], target: &mut [T]| {
        let mut row = Row::default();
        for (source, target) in source.chunks(BLOCK).zip(target.chunks_mut(BLOCK)) {
            write(source, target, &mut row);
        }
        row
    };
    let row = if source.len() <= CHUNK {
        work(source, &mut target)
    } else {
        let chunks = source.par_chunks(CHUNK).zip(target.par_chunks_mut(CHUNK));
        total(
            chunks
                .map(|(source, target)| work(source, target))
                .collect(),
        )
    };
    (target, row)
}

fn read<T: Real>(tensor: &FlexTensor) -> Row {
    let look = |chunk: &[T]| {
        let mut row = Row::default();
        for block in chunk.chunks(BLOCK) {
            T::observe(block, &mut row);
        }
        row.before = row.after;
        row
    };
    in_any_order(tensor, |values| over(values, look))
}

fn read_half<H>(tensor: &FlexTensor) -> Row
where
    H: Element + Pod + Sync,
    [H]: Halves,
{
    let look = |chunk: &[H]| {
        let mut row = Row::default();
        let mut wide = [0f32; BLOCK];
        for block in chunk.chunks(BLOCK) {
            let wide = &mut wide[..block.len()];
            widen(block, wide);
            f32::observe(wide, &mut row);
        }
        row.before = row.after;
        row
    };
    in_any_order(tensor, |values| over(values, look))
}

/// Hands out the values as they lie, or a contiguous copy where they do not fill their buffer.
fn in_any_order<T: Element + Pod, R>(tensor: &FlexTensor, work: impl FnOnce(&[T]) -> R) -> R {
    if is_whole::<T>(tensor) {
        return work(tensor.storage());
    }
    let tensor = tensor.to_contiguous();
    work(tensor.as_slice().expect("contiguous, and of this dtype"))
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

/// Adds up in the order of the chunks: the same sum on every run, whichever thread was first.
fn total(rows: Vec<Row>) -> Row {
    rows.into_iter().fold(Row::default(), join)
}

fn join(a: Row, b: Row) -> Row {
    Row {
        above: a.above + b.above,
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
trait Real: Element + Pod + Send + Sync {
    /// Multiplies a block and adds what is found to the row, values before scaling included.
    fn scale(block: &mut [Self], inverse: Self, row: &mut Row);

    /// Adds what is found in a block to the row.
    fn observe(block: &[Self], row: &mut Row);
}

/// Independent sums, so that they stay side by side in registers.
const LANES: usize = 16;
/// The bits of infinity; those of NaN are above.
const INFINITY: i32 = 0x7F80_0000;

impl Real for f32 {
    fn scale(block: &mut [f32], inverse: f32, row: &mut Row) {
        Arch::new().dispatch(Scale {
            block,
            inverse,
            row,
        });
    }

    fn observe(block: &[f32], row: &mut Row) {
        Arch::new().dispatch(Observe { block, row });
    }
}

// Short loops that do one thing each become SIMD; one loop that does all of it does not. Nor does a closure: the
// compiler puts a function of its own between it and the dispatch, and that one is compiled without SIMD.
struct Scale<'a> {
    block: &'a mut [f32],
    inverse: f32,
    row: &'a mut Row,
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (mut before, mut max) = (0, 0);
        for value in self.block.iter_mut() {
            before += i32::from(magnitude(*value) >= INFINITY);
            *value *= self.inverse;
            max = max.max(magnitude(*value));
        }
        self.row.before += before as u64;
        measure(self.block, max, self.row);
    }
}

struct Observe<'a> {
    block: &'a [f32],
    row: &'a mut Row,
}

impl WithSimd for Observe<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let mut max = 0;
        for value in self.block {
            max = max.max(magnitude(*value));
        }
        measure(self.block, max, self.row);
    }
}

/// The bits without the sign: ordered as the magnitudes are, NaN last.
#[inline(always)]
fn magnitude(value: f32) -> i32 {
    (value.to_bits() & 0x7FFF_FFFF) as i32
}

/// Adds what is found in a block of up to [`BLOCK`] values, of which `max` is the largest magnitude.
#[inline(always)]
fn measure(block: &[f32], max: i32, row: &mut Row) {
    let mut zeros = 0;
    for value in block {
        zeros += i32::from(*value == 0.0);
    }
    row.zeros += zeros as u64;
    if max < INFINITY {
        add_finite(block, max, row);
        return;
    }
    let mut finite = [0f32; BLOCK];
    let (mut bad, mut max) = (0, 0);
    for (finite, value) in finite.iter_mut().zip(block) {
        let is_finite = magnitude(*value) < INFINITY;
        *finite = if is_finite { *value } else { 0.0 };
        bad += i32::from(!is_finite);
        max = max.max(magnitude(*finite));
    }
    row.after += bad as u64;
    add_finite(&finite[..block.len()], max, row);
}

/// Bits of 2^-40 and 2^60. If the largest magnitude of a block is between them, squares in f32 neither overflow, 64 of
/// them in one sum included, nor lose what would count beside it.
const SAFE: RangeInclusive<i32> = (127 - 40) << 23..=(127 + 60) << 23;

#[inline(always)]
fn add_finite(block: &[f32], max: i32, row: &mut Row) {
    row.max_abs = row.max_abs.max(f64::from(f32::from_bits(max as u32)));
    if SAFE.contains(&max) {
        // Each lane adds up to 32 squares, and their errors do not add up over blocks.
        let mut squares = [0f32; 2 * LANES];
        let (lines, rest) = block.as_chunks::<{ 2 * LANES }>();
        for line in lines {
            for (sum, value) in squares.iter_mut().zip(line) {
                *sum += value * value;
            }
        }
        for value in rest {
            row.squares.medium += square(*value);
        }
        row.squares.medium += squares.iter().map(|sum| f64::from(*sum)).sum::<f64>();
        return;
    }
    // Squares of f32 values, and sums of them, stay well inside f64.
    let mut squares = [0f64; LANES];
    let (lines, rest) = block.as_chunks::<LANES>();
    for line in lines {
        for (sum, value) in squares.iter_mut().zip(line) {
            *sum += square(*value);
        }
    }
    for value in rest {
        squares[0] += square(*value);
    }
    for square in squares {
        row.squares.medium += square;
    }
}

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
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
        for value in block {
            if !value.is_finite() {
                row.after += 1;
                continue;
            }
            let magnitude = value.abs();
            row.zeros += u64::from(magnitude == 0.0);
            row.max_abs = row.max_abs.max(magnitude);
            row.squares.add(magnitude);
        }
    }
}
