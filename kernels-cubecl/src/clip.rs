//! Clipping by norms that only the device knows.
//!
//! The factors are found in whole numbers of 24 bits, and by one addition: devices divide and take roots with errors of their own, and a host
//! that looks at the norms must find the very factor that the device has taken. They are within 2^-21 of what f64 gives.
//!
//! ```
//! use burn_amp_kernels::{NormClip, clip_factors};
//!
//! // Norms of 3 and 4 are one of 5 together.
//! let all = NormClip::Joint { group: 0, threshold: 1.0 };
//! let factors = clip_factors(&[all, all, NormClip::Own(8.0)], &[3.0, 4.0, 16.0]);
//! assert!((factors[0] - 0.2).abs() < 1e-6 && factors[0] == factors[1]);
//! assert_eq!(factors[2], 0.5);
//! ```

use burn::tensor::{DType, Device, Tensor};
use std::collections::HashMap;

use crate::{schedule::data_of, status::Status};

/// How one gradient is clipped by a norm. Thresholds are above 0; an infinite one never clips, and one below 2^-126 is taken as that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum NormClip {
    /// Not at all.
    #[default]
    Not,
    /// By its own L2 norm: multiplied by `threshold / norm` where that is below 1.
    Own(f32),
    /// By the norm of all gradients of the group, as one vector: multiplied by `threshold / (norm + 1e-6)` where that is below 1, as by
    /// `torch.nn.utils.clip_grad_norm_`.
    Joint {
        /// The number of the group, up to 65,535. All of it have one threshold.
        group: u16,
        /// The largest norm.
        threshold: f32,
    },
}

/// Words of a gradient in a table: what its norm is that of, and the bits of the threshold.
pub(crate) const WORDS: usize = 2;

/// The gradient's own norm; what is above is that of a group.
pub(crate) const OWN: u32 = 1;

/// What `torch.nn.utils.clip_grad_norm_` adds to the norm.
pub(crate) const EPSILON: f32 = 1e-6;

/// 2^24: mantissas are below.
pub(crate) const TOP: u32 = 1 << 24;

/// What the exponent of a norm is above its true one: as that of the product of two floats.
pub(crate) const BIAS: u32 = 254;

/// The exponent of a float in the same measure.
pub(crate) const SHIFT: u32 = BIAS - 127;

impl NormClip {
    fn words(self) -> [u32; WORDS] {
        let (kind, threshold) = match self {
            Self::Own(threshold) => (OWN, threshold),
            Self::Joint { group, threshold } => (OWN + 1 + u32::from(group), threshold),
            Self::Not => (0, f32::INFINITY),
        };
        match threshold.is_finite() {
            true => [kind, threshold.max(f32::MIN_POSITIVE).to_bits()],
            false => [0, 0],
        }
    }
}

/// How the gradients of a list are clipped, on the device: uploaded once for many steps.
#[derive(Clone, Debug)]
pub struct ClipTable(Tensor<1>);

impl ClipTable {
    /// Of each gradient, in the order of the list that is measured: at most 65,536, so that the sum of the squares is in 64 bits. Does not
    /// wait for the device.
    pub fn upload(clips: &[NormClip], device: &Device) -> Self {
        let data = data_of(
            clips.iter().flat_map(|clip| clip.words()),
            [clips.len() * WORDS],
        );
        Self(Tensor::from_data(data, (device, DType::F32)))
    }

    /// With the norms, what an update needs of them; none of an empty list.
    pub(crate) fn with(&self, status: &Status) -> Option<[Tensor<1>; 2]> {
        Some([self.0.clone(), status.rows()?])
    }
}

/// What gradients with these norms are multiplied by: the very factors that a device finds in
/// [`DeviceScale::decide`](crate::DeviceScale::decide).
pub fn clip_factors(clips: &[NormClip], norms: &[f64]) -> Vec<f32> {
    let words: Vec<u32> = clips.iter().flat_map(|clip| clip.words()).collect();
    factors(&words, norms)
}

/// As [`clip_factors`], by the words of a table.
pub(crate) fn factors(table: &[u32], norms: &[f64]) -> Vec<f32> {
    let norms: Vec<Norm> = norms.iter().copied().map(Norm::of).collect();
    let table = table.as_chunks::<WORDS>().0;
    let mut known = HashMap::new();
    let factor = |(norm, [kind, threshold]): (&Norm, &[u32; WORDS])| match *kind {
        0 => 1.0,
        OWN => norm.factor(*threshold),
        kind => *known.entry(kind).or_insert_with(|| {
            let group = norms.iter().zip(table).filter(|(_, [of, _])| *of == kind);
            let norms = group.map(|(norm, _)| *norm);
            Norm::joint(norms).and_epsilon().factor(*threshold)
        }),
    };
    norms.iter().zip(table).map(factor).collect()
}

/// `mantissa * 2^(exponent - BIAS - 23)`; the mantissa has 24 bits, or is 0 and so is the exponent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Norm {
    exponent: u32,
    mantissa: u32,
}

impl Norm {
    /// To the nearest: what a kernel has found in f32 is exact.
    fn of(norm: f64) -> Self {
        let bits = norm.to_bits() + (1 << 28);
        let exponent = (bits >> 52) as u32 + BIAS;
        match exponent >= 1023 + 2 {
            true => Self {
                exponent: exponent - 1023,
                mantissa: (bits >> 29) as u32 % (TOP / 2) + TOP / 2,
            },
            false => Self::default(),
        }
    }

    fn joint(norms: impl Iterator<Item = Self> + Clone) -> Self {
        let largest = norms.clone().map(|norm| norm.exponent).max().unwrap_or(0);
        let square = |norm: Self| match largest - norm.exponent {
            shift @ 0..=24 => {
                let rounded = norm.mantissa + ((1 << shift) >> 1);
                u128::from(rounded >> shift).pow(2)
            }
            _ => 0,
        };
        let squares: u128 = norms.map(square).sum();
        let mut root = squares.isqrt();
        root += u128::from(squares - root * root > root);
        let mut excess = (u128::BITS - root.leading_zeros()).saturating_sub(24);
        let mut mantissa = ((root + ((1 << excess) >> 1)) >> excess) as u32;
        if mantissa == TOP {
            mantissa /= 2;
            excess += 1;
        }
        Self {
            exponent: largest + excess,
            mantissa,
        }
    }

    fn and_epsilon(self) -> Self {
        // Beyond f32's smallest, or where the sum is the norm itself.
        let sum = match self.exponent {
            ..=SHIFT => EPSILON,
            exponent if exponent < SHIFT + 138 => {
                let bits = ((exponent - SHIFT) << 23) | (self.mantissa % (TOP / 2));
                f32::from_bits(bits) + EPSILON
            }
            _ => return self,
        };
        Self {
            exponent: (sum.to_bits() >> 23) + SHIFT,
            mantissa: sum.to_bits() % (TOP / 2) + TOP / 2,
        }
    }

    /// The threshold over this, as the nearest f32, if that is below 1.
    fn factor(self, threshold: u32) -> f32 {
        let exponent = (threshold >> 23) + SHIFT;
        let mantissa = threshold % (TOP / 2) + TOP / 2;
        if (exponent, mantissa) >= (self.exponent, self.mantissa) {
            return 1.0;
        }
        let below = u32::from(mantissa < self.mantissa);
        let dividend = u64::from(mantissa) << (23 + below);
        let (quotient, rest) = (
            dividend / u64::from(self.mantissa),
            dividend % u64::from(self.mantissa),
        );
        let doubled = 2 * rest + quotient % 2;
        let quotient = quotient as u32 + u32::from(doubled > u64::from(self.mantissa));
        // A quotient of 2^24 carries into the exponent.
        match (exponent + 127).checked_sub(self.exponent + below) {
            Some(exponent @ 1..) => f32::from_bits(((exponent - 1) << 23) + quotient),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_f64_finds_them() {
        let mut seed = 1u64;
        let mut next = || {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        for _ in 0..20_000 {
            let count = 1 + (next() * 40.0) as usize;
            let spread = next() * 60.0;
            let at = next() * 120.0 - 60.0;
            let norms: Vec<f64> = (0..count)
                .map(|_| (1.0 + next()) * ((next() - 0.5) * spread + at).exp2())
                .collect();
            let norm = norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt();
            let threshold = (norm * (next() * 4.0 - 2.0).exp2()) as f32;
            let all = NormClip::Joint {
                group: 3,
                threshold,
            };
            let joint = clip_factors(&vec![all; count], &norms);
            let expected = (f64::from(threshold) / (norm + 1e-6)).min(1.0);
            let error = (f64::from(joint[0]) / expected - 1.0).abs();
            assert!(error < 2f64.powi(-21), "{error}: {} {expected}", joint[0]);
            assert!(joint.iter().all(|factor| *factor == joint[0]));

            let own = clip_factors(&vec![NormClip::Own(threshold); count], &norms);
            for (own, norm) in own.into_iter().zip(norms) {
                let expected = (f64::from(threshold) / norm).min(1.0);
                let error = (f64::from(own) / expected - 1.0).abs();
                assert!(
                    error < 2f64.powi(-22) || expected < 1e-37,
                    "{own} {expected}"
                );
            }
        }
    }

    #[test]
    fn at_the_edges() {
        let joint = |threshold| NormClip::Joint {
            group: 0,
            threshold,
        };
        assert_eq!(clip_factors(&[joint(1.0); 3], &[0.0; 3]), [1.0; 3]);
        assert_eq!(clip_factors(&[joint(1e-7)], &[0.0]), [1e-7 / 1e-6]);
        assert_eq!(clip_factors(&[joint(f32::INFINITY)], &[1e38]), [1.0]);
        assert_eq!(clip_factors(&[NormClip::Own(2.0)], &[2.0]), [1.0]);
        assert_eq!(clip_factors(&[NormClip::Own(2.0)], &[1e300]), [0.0]);
        assert_eq!(clip_factors(&[NormClip::Not], &[1e300]), [1.0]);
        let tiny = f64::from(f32::from_bits(1));
        assert_eq!(clip_factors(&[NormClip::Own(1.0)], &[tiny]), [1.0]);
    }
}
