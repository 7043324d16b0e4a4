//! Tensors of two runs beside each other, measured on the device.

use burn::tensor::{FloatDType, Tensor};
use burn_amp_core::{AmpError, internal::observe};
use burn_amp_kernels::TensorStatus;
use serde::Serialize;

/// The difference of a tensor to the same in f32.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// The cosine of the angle to f32; none where one of them is zero or not finite.
    pub(crate) cosine: Option<f64>,
    /// The norm over that in f32.
    pub(crate) norm_ratio: Option<f64>,
    /// The share of the values that are not zero in f32 and are zero here, from 0 to 1.
    pub(crate) lost: f64,
    /// Infinities and NaN that are finite in f32.
    pub(crate) non_finite: u64,
    /// The number of times that the largest value can be doubled before it overflows; none where it is zero or in f32.
    pub(crate) headroom: Option<f64>,
    /// The norm of the difference over that in f32.
    pub(crate) error: Option<f64>,
    #[serde(skip)]
    pub(crate) zeros: u64,
    /// The root of the mean square of the difference.
    #[serde(skip)]
    pub(crate) error_rms: f64,
}

/// A tensor beside the same in f32.
pub(crate) struct Pair<'a> {
    /// Multiplied by `scale`, in `dtype`.
    pub(crate) values: &'a Tensor<1>,
    pub(crate) scale: f64,
    /// The format in which overflow is looked for; none for f32.
    pub(crate) half: Option<FloatDType>,
    pub(crate) expected: &'a Tensor<1>,
}

/// Compares tensors with those of the f32 run, which were measured. Waits for each device.
pub(crate) fn compare(
    pairs: &[Pair<'_>],
    expected: &[TensorStatus],
) -> Result<Vec<Figures>, AmpError> {
    let statuses = observe::measure(pairs.iter().map(|pair| pair.values))?;
    let differences: Vec<_> = pairs.iter().map(Pair::difference).collect();
    let differences = observe::measure(differences.iter())?;
    let found = pairs
        .iter()
        .zip(expected)
        .zip(statuses.iter().zip(&differences));
    let figures = found
        .map(|((pair, expected), (status, difference))| pair.figures(expected, status, difference));
    Ok(figures.collect())
}

/// The number of times that a magnitude can be doubled before it overflows; none for zero.
pub(crate) fn headroom(dtype: FloatDType, max_abs: f64) -> Option<f64> {
    let largest = match dtype {
        FloatDType::BF16 => 2f64.powi(128),
        _ => 65520.0,
    };
    (max_abs > 0.0).then(|| (largest / max_abs).log2())
}

impl Pair<'_> {
    fn difference(&self) -> Tensor<1> {
        let wide = match observe::is_half(self.values.dtype()) {
            true => self.values.clone().cast(FloatDType::F32),
            false => self.values.clone(),
        };
        let wide = match self.scale {
            1.0 => wide,
            scale => wide.mul_scalar(1.0 / scale),
        };
        let expected = self.expected.clone().to_device(&wide.device());
        let expected = expected.cast(wide.dtype());
        wide - expected
    }

    fn figures(
        &self,
        reference: &TensorStatus,
        status: &TensorStatus,
        difference: &TensorStatus,
    ) -> Figures {
        let norm = status.norm / self.scale;
        let finite = status.non_finite == 0 && reference.non_finite == 0;
        let comparable = finite && reference.norm > 0.0;
        let nonzero = reference.elements - reference.zeros;
        let lost = status.zeros.saturating_sub(reference.zeros);
        Figures {
            cosine: (comparable && norm > 0.0).then(|| {
                // From what differs: two products that nearly cancel would lose the digits.
                let apart = difference.norm.powi(2) - (norm - reference.norm).powi(2);
                (1.0 - apart / (2.0 * norm * reference.norm)).clamp(-1.0, 1.0)
            }),
            norm_ratio: comparable.then(|| norm / reference.norm),
            lost: lost as f64 / nonzero.max(1) as f64,
            non_finite: status.non_finite.saturating_sub(reference.non_finite),
            headroom: self.half.and_then(|half| headroom(half, status.max_abs)),
            error: comparable.then(|| difference.norm / reference.norm),
            zeros: status.zeros,
            error_rms: rms(difference),
        }
    }
}

/// The norm of the finite values alone would pass for a small one.
pub(crate) fn finite_norm(status: &TensorStatus) -> Option<f64> {
    (status.non_finite == 0).then_some(status.norm)
}

pub(crate) fn rms(status: &TensorStatus) -> f64 {
    status.norm / (status.elements.max(1) as f64).sqrt()
}
