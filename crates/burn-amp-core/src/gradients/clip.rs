//! Clipping: between unscaling and the optimizer, with the norms that the unscaling pass has found.

use burn::module::{ParamGroup, ParamId};
use burn::{config::Config, optim::GradientsParams};
use burn_amp_kernels::{ClipTable, NormClip, TensorStatus, clip_factors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use crate::gradients::{Entry, UnscaledGradients, pass::norm, status::Clipping};
use crate::{error::AmpError, values::AnyTensor};

/// A rule for clipping gradients: Burn's `GradientClippingConfig`, with the global norm beside it.
///
/// Used by [`ScaledOptimizer::with_clipping`](crate::ScaledOptimizer::with_clipping), and by [`UnscaledGradients::clip`] where
/// steps are written by hand. The threshold is in the unit of the unscaled gradients. It is above 0; infinity, `"inf"` in JSON,
/// measures and never clips. Clipping by a norm is from "On the difficulty of training recurrent neural networks" (Pascanu et
/// al., 2013).
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{GradScalerConfig, GradientClip, torch::GradScaler};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let scaler = GradScaler::new(GradScalerConfig::new())?;
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let grads = scaler.unscale(scaler.backward(model.forward(input).sum(), &model), &model)?;
/// let grads = grads.clip(&GradientClip::GlobalNorm(0.01))?;
///
/// let status = grads.status();
/// assert_eq!(status.clip_norms(), [status.norm()]); // before clipping
/// assert!(status.clip_coefficient().unwrap() < 1.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GradientClip {
    /// Every value is limited to `-threshold..=threshold`. Keras's `clipvalue`, `torch.nn.utils.clip_grad_value_`.
    Value(#[serde(with = "crate::values::number")] f64),
    /// Each parameter's gradient whose L2 norm exceeds the threshold is shortened to it. Keras's `clipnorm`.
    Norm(#[serde(with = "crate::values::number")] f64),
    /// All gradients of the group, as one vector, are multiplied by `threshold / (norm + 1e-6)` where that is below 1.
    /// `torch.nn.utils.clip_grad_norm_`, whose 1e-6 is kept; Keras's `global_clipnorm`, DeepSpeed's `gradient_clipping`.
    GlobalNorm(#[serde(with = "crate::values::number")] f64),
}

// By hand: the derive refuses an attribute at a threshold.
impl Config for GradientClip {}

impl std::fmt::Display for GradientClip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&burn::config::config_to_json(self))
    }
}

impl GradientClip {
    /// Refuses a threshold that is zero, negative or NaN; `field` is the setting that holds it.
    pub(crate) fn check(&self, field: &'static str) -> Result<(), AmpError> {
        let (Self::Value(threshold) | Self::Norm(threshold) | Self::GlobalNorm(threshold)) = self;
        // A NaN is not above zero either.
        match *threshold > 0.0 {
            true => Ok(()),
            false => Err(AmpError::refused(
                field,
                format!("{self:?}"),
                "a threshold above 0",
            )),
        }
    }
}

/// Factors of the gradients of parameters; those of others are not multiplied.
pub type Factors = HashMap<ParamId, f32>;

/// Rules for groups of parameters, of which the last one that matches holds. One of no group stands first, and is for all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClipRules(pub(crate) Vec<(Option<ParamGroup>, GradientClip)>);

impl ClipRules {
    /// The table by which a device clips these gradients by their norms; none if it has not to.
    pub(crate) fn table(&self, entries: &[Entry]) -> Option<ClipTable> {
        let clips = self.by_norm(entries);
        let device = &entries.first()?.device;
        let clips_any = clips.iter().any(|clip| *clip != NormClip::Not);
        clips_any.then(|| ClipTable::upload(&clips, device))
    }

    /// The rule by which each gradient is clipped by a norm.
    fn by_norm(&self, entries: &[Entry]) -> Vec<NormClip> {
        let clip = |entry: &Entry| match self.rule_of(entry) {
            Some((_, GradientClip::Norm(threshold))) => NormClip::Own(threshold as f32),
            Some((index, GradientClip::GlobalNorm(threshold))) => NormClip::Joint {
                group: index as u16,
                threshold: threshold as f32,
            },
            Some((_, GradientClip::Value(_))) | None => NormClip::Not,
        };
        entries.iter().map(clip).collect()
    }

    /// Limits the values of the gradients that are clipped by value. Nobody has to know whether any is beyond its limit.
    pub(crate) fn limit(&self, grads: &mut GradientsParams, entries: &[Entry]) {
        let mut rules = self.0.iter();
        if !rules.any(|(_, rule)| matches!(rule, GradientClip::Value(_))) {
            return;
        }
        for entry in entries {
            if let Some((_, GradientClip::Value(threshold))) = self.rule_of(entry) {
                entry.change(grads, |grad| limited(grad, threshold));
            }
        }
    }

    /// A parameter's rule, and its position.
    fn rule_of(&self, entry: &Entry) -> Option<(usize, GradientClip)> {
        let matches = |group: &ParamGroup| group.matches(&entry.id, Some(&entry.path));
        let mut rules = self.0.iter().enumerate();
        let found = rules.rfind(|(_, (group, _))| group.as_ref().is_none_or(matches));
        found.map(|(index, (_, rule))| (index, *rule))
    }
}

/// Rounding the threshold to the gradient's dtype is rounding the result: no need to widen it.
fn limited(grad: AnyTensor, threshold: f64) -> AnyTensor {
    grad.map(|grad| grad.clamp(-threshold, threshold))
}

impl UnscaledGradients {
    /// Clips the gradients; the norms before clipping stay in the [`status`](Self::status).
    ///
    /// The norms are those that the unscaling pass has found, so there is no second pass to find them. Gradients within their
    /// threshold are not touched; others are multiplied or limited on their device, and keep shape and dtype. Does not wait for
    /// the device, with one exception: gradients that were changed since (by [`map`](Self::map),
    /// [`mul_scalar`](Self::mul_scalar), [`add_weighted`](Self::add_weighted), [`params_mut`](Self::params_mut), or by clipping before) and those
    /// of a disabled scaler are measured first, in one pass and one wait, and the status is that of this pass.
    ///
    /// Gradients that overflow stay as they are: the step is skipped, and clipping an infinity would hide it. That holds
    /// for an overflow that is found only now, too. A disabled scaler skips nothing: the step is taken unclipped.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN. If gradients have to be measured,
    /// [`AmpError::GradientShape`] if one does not have its parameter's shape, and [`AmpError::UnsupportedDType`] if its device cannot
    /// compute in its dtype.
    pub fn clip(self, clip: &GradientClip) -> Result<Self, AmpError> {
        clip.check("clip")?;
        self.clip_groups(&[(ParamGroup::all(), *clip)])
    }

    /// Clips with a rule for each group of parameters; see [`clip`](Self::clip). A parameter that matches several groups follows the
    /// last one, as with Burn's `ModuleOptimizer::with_group`; one that matches none is not clipped. A global norm is that of its
    /// group alone.
    ///
    /// # Errors
    ///
    /// As [`clip`](Self::clip).
    pub fn clip_groups(self, groups: &[(ParamGroup, GradientClip)]) -> Result<Self, AmpError> {
        for (_, clip) in groups {
            clip.check("clip_groups")?;
        }
        let groups = groups.iter().cloned();
        let rules = groups.map(|(group, clip)| (Some(group), clip)).collect();
        Ok(self.clip_by(&ClipRules(rules), 1.0, false)?.0)
    }

    /// Clips by these rules what a guard has multiplied by `factor`, at most 1, in one multiplication. If the `later` step multiplies, it is given
    /// by what, except for f64; those factors are the ones that a device finds by itself.
    pub(crate) fn clip_by(
        mut self,
        rules: &ClipRules,
        factor: f64,
        later: bool,
    ) -> Result<(Self, Factors), AmpError> {
        if self.finding.skips() {
            return Ok((self, Factors::new()));
        }
        self.measured()?;
        // Also what a change, or a disabled scaler, has let through: clipped, it would look like a gradient.
        if self.has_overflow() {
            return Ok((self, Factors::new()));
        }
        let mut found = self.found.take().unwrap_or_default();
        let (changes, clipping) = plan(rules, factor, &self.entries, &found.each, later);
        found.all.clipping = clipping;
        let mut factors = Factors::new();
        let mut shared: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (at, Change { factor, limit }) in changes.iter().enumerate() {
            match later && limit.is_none() {
                _ if *factor >= 1.0 => {}
                // A pass multiplies in f32.
                _ if self.entries[at].is_f64() => self.change(at, |grad| grad.mul_scalar(*factor)),
                true => _ = factors.insert(self.entries[at].id, *factor as f32),
                false => shared.entry(factor.to_bits()).or_default().push(at),
            }
        }
        for (bits, positions) in shared {
            let factor = f64::from_bits(bits);
            match positions[..] {
                [at] => self.change(at, |grad| grad.mul_scalar(factor)),
                // One pass for several.
                _ => self.scale(&positions, factor as f32)?,
            }
        }
        for (at, change) in changes.iter().enumerate() {
            if let Some(threshold) = change.limit {
                self.change(at, |grad| limited(grad, threshold));
            }
        }
        self.found = OnceLock::from(found);
        Ok((self, factors))
    }
}

/// The change of a gradient: a factor of at most 1, and then a limit of its values.
#[derive(Clone)]
struct Change {
    factor: f64,
    limit: Option<f64>,
}

/// The number that `torch.nn.utils.clip_grad_norm_` adds to the norm.
const EPSILON: f64 = 1e-6;

/// Plans the changes with the coefficient of a guard. Of it and that of a norm the smaller holds, as in ZClip; values are clipped after it. If the
/// `later` step multiplies, by what a device would find.
fn plan(
    rules: &ClipRules,
    guard: f64,
    entries: &[Entry],
    statuses: &[TensorStatus],
    later: bool,
) -> (Vec<Change>, Clipping) {
    let norms: Vec<f64> = statuses.iter().map(|status| status.norm).collect();
    let of_device = later.then(|| clip_factors(&rules.by_norm(entries), &norms));
    let factor_of = |at: usize, of_host: f64| {
        let of_device = (of_device.as_ref()).filter(|_| !entries[at].is_f64());
        of_device.map_or(of_host, |factors| factors[at].into())
    };
    let (factor, limit) = (guard, None);
    let mut changes = vec![Change { factor, limit }; entries.len()];
    let mut clipping = Clipping::default();
    let mut coefficients = Vec::from_iter((guard < 1.0).then_some(guard));
    let rule_of = entries.iter().map(|entry| Some(rules.rule_of(entry)?.0));
    let rule_of: Vec<_> = rule_of.collect();
    for (index, (_, rule)) in rules.0.iter().enumerate() {
        let of_rule = (0..entries.len()).filter(|at| rule_of[*at] == Some(index));
        match *rule {
            GradientClip::GlobalNorm(threshold) => {
                let norm = norm(of_rule.clone().map(|at| norms[at]));
                let factor = (threshold / (norm + EPSILON)).min(1.0);
                let first = of_rule.clone().next();
                clipping.norms.push(norm);
                coefficients.push(first.map_or(factor, |at| factor_of(at, factor)));
                of_rule.for_each(|at| changes[at].factor = guard.min(factor_of(at, factor)));
            }
            GradientClip::Norm(threshold) => {
                for at in of_rule.filter(|at| norms[*at] > threshold) {
                    changes[at].factor = guard.min(factor_of(at, threshold / norms[at]));
                }
            }
            GradientClip::Value(threshold) => {
                for at in of_rule.filter(|at| guard * statuses[*at].max_abs > threshold) {
                    changes[at].limit = Some(threshold);
                }
            }
        }
    }
    let is_change = |change: &&Change| change.factor < 1.0 || change.limit.is_some();
    clipping.changed = Some(changes.iter().filter(is_change).count());
    clipping.coefficient = coefficients.into_iter().min_by(f64::total_cmp);
    (changes, clipping)
}
