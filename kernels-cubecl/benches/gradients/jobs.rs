//! What is timed: the kernels, a copy, and the same job composed of Burn's operations.

use std::time::{Duration, Instant};

use burn::{
    backend::Dispatch,
    tensor::{DType, Device, FloatDType, Tensor, TensorData, bf16, f16},
};
use burn_amp_kernels::{
    AmpOps, Elementwise, Job, TensorList, TensorVec, UpdateRow, UpdateRule, histogram, inspect,
    unscale, unscale_in_dtype, update,
};
use rayon::prelude::*;

use crate::sets::Set;

/// The seconds of one run, and its calls that read from the device.
pub struct Run {
    pub time: Duration,
    pub reads: u32,
}

/// Calls that read from the device go through here, to be counted: CubeCL reports launches, but no transfers.
#[derive(Default)]
struct Reads(u32);

impl Reads {
    fn read<R>(&mut self, read: impl FnOnce() -> R) {
        self.0 += 1;
        std::hint::black_box(read());
    }
}

pub const SGD: UpdateRule = UpdateRule::Sgd {
    momentum: true,
    nesterov: false,
};
pub const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };
pub const ADAM_W: UpdateRule = UpdateRule::AdamW {
    amsgrad: false,
    cautious: false,
};

/// A step that changes little, however often it is taken.
const ROW: UpdateRow = UpdateRow {
    taken: 1.0,
    scale: 1.0,
    lr: 1e-6,
    fresh: 0.0,
    decay: 0.0,
    beta_1: 0.9,
    factor_1: 0.1,
    beta_2: 0.999,
    factor_2: 0.001,
    correction_1: 1.0,
    correction_2: 1.0,
    epsilon: 1e-5,
};

/// A set's gradients on a device.
pub struct Gradients<'a> {
    set: &'a Set,
    device: Device,
    dtype: DType,
    /// Held by this list alone.
    owned: TensorList,
    shared: TensorList,
    /// Parameters and both moments, for the optimizers, which alone hold them.
    kept: [TensorList; 3],
    /// As many values in one tensor, for the copy on other devices than Flex.
    whole: Option<Tensor<1>>,
    /// The same bytes in plain memory, for the copies on Flex.
    plain: Vec<Vec<u8>>,
    targets: Vec<Vec<u8>>,
}

/// Not above 1, as the inverse of a loss scale is not; values keep their magnitudes however often they are multiplied.
const FACTOR: f32 = -1.0;

/// Values of a plausible gradient: of both signs, some zero, none infinite.
fn value(index: usize) -> f32 {
    let hash = (index as u32).wrapping_mul(2_654_435_761) >> 16;
    (hash as f32 - 32768.0) / 65536.0
}

fn data(set: &Set, shape: &[usize], dtype: DType) -> TensorData {
    let row = shape.last().copied().unwrap_or(1);
    let value = |index: usize| match (index / row).is_multiple_of(set.rows_for_one) {
        true => value(index),
        false => 0.0,
    };
    let elements = 0..shape.iter().product();
    match dtype {
        DType::F16 => {
            let values: Vec<f16> = elements.map(|i| f16::from_f32(value(i))).collect();
            TensorData::new(values, shape)
        }
        DType::BF16 => {
            let values: Vec<bf16> = elements.map(|i| bf16::from_f32(value(i))).collect();
            TensorData::new(values, shape)
        }
        _ => TensorData::new(elements.map(value).collect::<Vec<f32>>(), shape),
    }
}

macro_rules! by_rank {
    ($shape:expr, $rank:ident => $body:expr) => {
        match $shape.len() {
            1 => {
                const $rank: usize = 1;
                $body
            }
            2 => {
                const $rank: usize = 2;
                $body
            }
            _ => {
                const $rank: usize = 4;
                $body
            }
        }
    };
}

impl<'a> Gradients<'a> {
    pub fn new(set: &'a Set, dtype: DType, device: &Device, plain: bool) -> Self {
        let list = || {
            let mut list = TensorList::new();
            for shape in &set.shapes {
                let data = data(set, shape, dtype);
                by_rank!(shape, D => list.push(Tensor::<D>::from_data(data, (device, dtype))));
            }
            list
        };
        let bytes = |shape: &Vec<usize>| data(set, shape, dtype).as_bytes().to_vec();
        let plain: Vec<Vec<u8>> = match plain {
            true => set.shapes.iter().map(bytes).collect(),
            false => Vec::new(),
        };
        let shared = list();
        let whole = plain.is_empty().then(|| match set.shapes.as_slice() {
            // It is one tensor already: a second one of its size may not fit.
            [shape] if shape.len() == 1 => shared.get::<1>(0),
            _ => Tensor::from_data(data(set, &[set.elements()], dtype), (device, dtype)),
        });
        let zeros = || {
            let mut list = TensorList::new();
            for shape in &set.shapes {
                by_rank!(shape, D => {
                    let shape: [usize; D] = std::array::from_fn(|axis| shape[axis]);
                    list.push(Tensor::<D>::zeros(shape, (device, dtype)));
                })
            }
            list
        };
        let kept = match dtype {
            DType::F32 => [list(), zeros(), zeros()],
            _ => std::array::from_fn(|_| TensorList::new()),
        };
        Self {
            set,
            device: device.clone(),
            dtype,
            owned: list(),
            shared,
            kept,
            whole,
            targets: plain.clone(),
            plain,
        }
    }

    fn factor(&self) -> Tensor<1> {
        Tensor::from_floats([FACTOR], &self.device)
    }

    fn sync(&self) {
        self.device.sync().expect("the device is well");
    }

    /// Nobody else holds the tensors: they are overwritten.
    pub fn in_place(&mut self) -> Run {
        let (list, factor) = (std::mem::take(&mut self.owned), self.factor());
        self.sync();
        let start = Instant::now();
        let (list, status) = unscale_in_dtype(list, factor).expect("a supported dtype");
        let mut reads = Reads::default();
        reads.read(|| status.read());
        let time = start.elapsed();
        self.owned = list;
        Run {
            time,
            reads: reads.0,
        }
    }

    /// Somebody else holds the tensors: products are new.
    pub fn out_of_place(&mut self) -> Run {
        let (list, factor) = (self.shared.clone(), self.factor());
        self.sync();
        let start = Instant::now();
        let (list, status) = unscale(list, factor).expect("a supported dtype");
        let mut reads = Reads::default();
        reads.read(|| status.read());
        let time = start.elapsed();
        drop(list);
        Run {
            time,
            reads: reads.0,
        }
    }

    /// In place, then by the norm, as by torch's `clip_grad_norm_`: multiplied whatever the norm is.
    pub fn clip(&mut self) -> Run {
        let (list, factor) = (std::mem::take(&mut self.owned), self.factor());
        self.sync();
        let start = Instant::now();
        let (list, status) = unscale_in_dtype(list, factor).expect("a supported dtype");
        let mut reads = Reads::default();
        let mut norm = 0.0;
        reads.read(|| {
            norm = status
                .read()
                .iter()
                .map(|one| one.norm.powi(2))
                .sum::<f64>()
        });
        let coefficient = (1e9 / (norm.sqrt() + 1e-6)).min(1.0) as f32;
        let coefficient = Tensor::from_floats([coefficient], &self.device);
        let (list, _) = unscale_in_dtype(list, coefficient).expect("a supported dtype");
        self.sync();
        let time = start.elapsed();
        self.owned = list;
        Run {
            time,
            reads: reads.0,
        }
    }

    /// A fused optimizer's step, parameters in f32, in place.
    pub fn update(&mut self, rule: UpdateRule) -> Run {
        let count = 1 + rule.states();
        let mut list = TensorList::new();
        // Taken from the end, and put back from the end: each comes back to its place.
        for (index, shape) in self.set.shapes.iter().enumerate().rev() {
            by_rank!(shape, D => {
                list.push(self.shared.get::<D>(index));
                for kept in &mut self.kept[..count] {
                    list.push(kept.pop::<D>().expect("a tensor for each shape"));
                }
            })
        }
        let row = UpdateRow {
            // `AdamW` multiplies the parameter by it.
            decay: f32::from(u8::from(rule == ADAM_W)),
            ..ROW
        };
        let rows = UpdateRow::upload(&vec![row; self.set.shapes.len()], &self.device);
        self.sync();
        let start = Instant::now();
        let mut list = update(rule, list, rows).expect("a supported dtype");
        self.sync();
        let time = start.elapsed();
        for shape in &self.set.shapes {
            by_rank!(shape, D => {
                for kept in self.kept[..count].iter_mut().rev() {
                    kept.push(list.pop::<D>().expect("what was stepped"));
                }
            })
        }
        Run { time, reads: 0 }
    }

    pub fn inspect(&mut self) -> Run {
        self.look(|list, reads| {
            let status = inspect(list).expect("a supported dtype");
            reads.read(|| status.read());
        })
    }

    pub fn histogram(&mut self) -> Run {
        self.look(|list, reads| {
            let counts = histogram(list).expect("a supported dtype");
            reads.read(|| counts.read());
        })
    }

    fn look(&mut self, look: impl FnOnce(TensorList, &mut Reads)) -> Run {
        let list = self.shared.clone();
        self.sync();
        let mut reads = Reads::default();
        let start = Instant::now();
        look(list, &mut reads);
        Run {
            time: start.elapsed(),
            reads: reads.0,
        }
    }

    /// The job of `unscale`, or of `inspect` without a factor, in Burn's operations, with one read at its end.
    /// In place if f32.
    pub fn composed(&mut self, scale: bool) -> Run {
        let in_place = self.dtype == DType::F32 && scale;
        let mut list = match in_place {
            true => std::mem::take(&mut self.owned),
            false => self.shared.clone(),
        };
        self.sync();
        let start = Instant::now();
        let (mut products, mut facts) = (Vec::new(), Vec::new());
        let mut step = |list: &mut TensorList, shape: &[usize]| {
            by_rank!(shape, D => {
                let tensor = list.pop::<D>().expect("a tensor for each shape");
                let tensor = tensor.cast(FloatDType::F32);
                let product = if scale { tensor.mul_scalar(FACTOR) } else { tensor };
                facts.push(product.clone().is_finite().all().float());
                facts.push(product.clone().square().sum());
                let mut one = TensorList::new();
                one.push(product);
                products.push(one);
            })
        };
        for shape in self.set.shapes.iter().rev() {
            step(&mut list, shape);
        }
        let mut reads = Reads::default();
        reads.read(|| Tensor::cat(facts, 0).into_data());
        let time = start.elapsed();
        if in_place {
            for (mut one, shape) in products.into_iter().rev().zip(&self.set.shapes) {
                by_rank!(shape, D => list.push(one.pop::<D>().expect("one tensor")));
            }
            self.owned = list;
        }
        Run {
            time,
            reads: reads.0,
        }
    }

    /// The backward pass of `scaled_cast` for each tensor, from half to f32 or from f32 to f16; or the same in Burn's
    /// operations.
    pub fn cast(&mut self, composed: bool) -> Run {
        let to = match self.dtype {
            DType::F32 => FloatDType::F16,
            _ => FloatDType::F32,
        };
        let factor = 1024.0;
        self.sync();
        let start = Instant::now();
        let mut products = TensorList::new();
        for (index, shape) in self.set.shapes.iter().enumerate() {
            // Casts lie between other operations. Of thousands in a row, Burn's fusion tries what fits together, which takes the host seconds.
            if index % 100 == 99 {
                self.sync();
            }
            by_rank!(shape, D => {
                let tensor = self.shared.get::<D>(index);
                products.push(match composed {
                    true => tensor.cast(FloatDType::F32).mul_scalar(factor).cast(to),
                    false => {
                        let job = Job::Elementwise(Elementwise::MulCast { dtype: to, factor });
                        let mut made = Dispatch::amp_run(TensorVec(vec![tensor.into_dispatch()]), job);
                        Tensor::<D>::from_dispatch(made.0.remove(0))
                    }
                });
            })
        }
        self.sync();
        let time = start.elapsed();
        drop(products);
        Run { time, reads: 0 }
    }

    /// Into new memory. On Flex as fast as two plain loops over memory go: all threads, each block written once, and
    /// the system's cost of new pages in it as in any operation that makes new tensors. Elsewhere
    /// `mul_scalar(1)` of one tensor of as many bytes that somebody else holds: one launch, so that it is the memory that
    /// is measured and not the launches of a thousand small copies.
    pub fn copy(&mut self) -> Run {
        let Some(whole) = self.whole.clone() else {
            let start = Instant::now();
            let copies: Vec<Vec<u8>> = self.plain.par_iter().map(|plain| copied(plain)).collect();
            let time = start.elapsed();
            drop(std::hint::black_box(copies));
            return Run { time, reads: 0 };
        };
        self.sync();
        let start = Instant::now();
        let copy = whole.mul_scalar(1.0);
        self.sync();
        let time = start.elapsed();
        drop(copy);
        Run { time, reads: 0 }
    }

    /// Into memory that is there already, on Flex alone.
    pub fn copy_into(&mut self) -> Run {
        let start = Instant::now();
        (self.plain.par_iter().zip(&mut self.targets)).for_each(|(plain, target)| {
            if plain.len() <= PIECE {
                return target.copy_from_slice(plain);
            }
            let targets = target.par_chunks_mut(PIECE);
            (plain.par_chunks(PIECE).zip(targets)).for_each(|(from, to)| to.copy_from_slice(from));
        });
        Run {
            time: start.elapsed(),
            reads: 0,
        }
    }
}

const PIECE: usize = 1 << 18;
const PAGE: usize = 1 << 12;

/// Each page is copied into memory that was not zeroed before, large vectors by all threads.
fn copied(plain: &[u8]) -> Vec<u8> {
    let (pages, rest) = plain.as_chunks::<PAGE>();
    if plain.len() <= PIECE || pages.is_empty() {
        return plain.to_vec();
    }
    let mut copy: Vec<[u8; PAGE]> = Vec::with_capacity(pages.len() + 1);
    pages
        .par_iter()
        .with_min_len(PIECE / PAGE)
        .copied()
        .collect_into_vec(&mut copy);
    let mut copy = copy.into_flattened();
    copy.extend_from_slice(rest);
    copy
}
