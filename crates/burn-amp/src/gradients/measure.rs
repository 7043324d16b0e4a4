//! The numbers of one gradient, computed on its device by Burn's own operations.

use burn::tensor::{DType, Device, FloatDType, Tensor};

/// Counts travel as two floats, `high * COUNT_BASE + low`: each stays exact in f32, up to 2^40 values.
const COUNT_BASE: u64 = 1 << 20;
const FIELDS: usize = 6;

/// The numbers of one gradient, still on its device: [`FIELDS`] floats.
pub(super) struct Measure {
    fields: Vec<Tensor<1>>,
    device: Device,
    elements: u64,
}

/// The numbers of one gradient, on the host.
#[derive(Clone, Copy, Default)]
pub(super) struct Measured {
    pub(super) elements: u64,
    pub(super) non_finite: u64,
    pub(super) zeros: u64,
    pub(super) max_abs: f64,
    /// Sum over the finite values of `(value / max_abs)^2`.
    pub(super) relative_squares: f64,
}

impl Measure {
    /// Enqueues the operations; does not wait. `grad` is f32 or f64, of any shape.
    pub(super) fn of<const D: usize>(grad: Tensor<D>) -> Self {
        let device = grad.device();
        let elements = grad.shape().num_elements();
        if elements == 0 {
            return Self {
                fields: Vec::new(),
                device,
                elements: 0,
            };
        }
        let grad = grad.reshape([elements]);
        let finite = grad.clone().is_finite();
        let non_finite = finite.clone().bool_not().int().sum();
        let zeros = grad.clone().equal_scalar(0.0).int().sum();
        let magnitudes = grad.mask_fill(finite.bool_not(), 0.0).abs();
        let max_abs = magnitudes.clone().max();
        let divisor = max_abs
            .clone()
            .mask_fill(max_abs.clone().equal_scalar(0.0), 1.0);
        let relative_squares = sum((magnitudes / divisor).square());

        let dtype: FloatDType = max_abs.dtype().into();
        let split = |count: Tensor<1, burn::tensor::Int>| {
            let base = COUNT_BASE as i32;
            let high = count.clone().div_scalar(base).cast(dtype);
            let low = count.remainder_scalar(base).cast(dtype);
            [high, low]
        };
        let mut fields = Vec::with_capacity(FIELDS);
        fields.extend(split(non_finite));
        fields.extend(split(zeros));
        fields.push(max_abs);
        fields.push(relative_squares);
        Self {
            fields,
            device,
            elements: elements as u64,
        }
    }
}

/// Sums in blocks, so that rounding errors grow with the logarithm of the length and not with the length.
fn sum(mut values: Tensor<1>) -> Tensor<1> {
    const BLOCK: usize = 128;
    loop {
        let [length] = values.dims();
        let rows = length / BLOCK;
        if rows <= 1 {
            return values.sum();
        }
        let whole = rows * BLOCK;
        let blocks = values
            .clone()
            .slice([0..whole])
            .reshape([rows, BLOCK])
            .sum_dim(1);
        let sums = blocks.reshape([rows]);
        values = match length - whole {
            0 => sums,
            _ => Tensor::cat(vec![sums, values.slice([whole..length])], 0),
        };
    }
}

/// Reads all measures, in order: one transfer, and one wait, per device.
pub(super) fn read(measures: Vec<Measure>) -> Vec<Measured> {
    let mut results = vec![Measured::default(); measures.len()];
    let mut devices: Vec<(Device, Vec<usize>, Vec<Tensor<1>>)> = Vec::new();
    for (index, measure) in measures.into_iter().enumerate() {
        results[index].elements = measure.elements;
        if measure.fields.is_empty() {
            continue;
        }
        let position = devices.iter().position(|(d, ..)| *d == measure.device);
        let position = position.unwrap_or_else(|| {
            devices.push((measure.device.clone(), Vec::new(), Vec::new()));
            devices.len() - 1
        });
        let (_, indices, fields) = &mut devices[position];
        indices.push(index);
        fields.extend(measure.fields);
    }
    for (_, indices, fields) in devices {
        let values = host_values(fields);
        for (index, values) in indices.into_iter().zip(values.chunks_exact(FIELDS)) {
            let count = |high: f64, low: f64| high as u64 * COUNT_BASE + low as u64;
            let measured = &mut results[index];
            measured.non_finite = count(values[0], values[1]);
            measured.zeros = count(values[2], values[3]);
            measured.max_abs = values[4];
            measured.relative_squares = values[5];
        }
    }
    results
}

fn host_values(mut fields: Vec<Tensor<1>>) -> Vec<f64> {
    // One f64 gradient among f32 ones must not lose its range on the way.
    if fields.iter().any(|field| field.dtype() == DType::F64) {
        fields = fields
            .into_iter()
            .map(|field| field.cast(FloatDType::F64))
            .collect();
    }
    Tensor::cat(fields, 0).into_data().iter::<f64>().collect()
}
