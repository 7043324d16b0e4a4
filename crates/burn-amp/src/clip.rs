//! Clipping: between unscaling and the optimizer, with the norms that the unscaling pass has found.

use burn::{
    config::Config,
    module::{ModuleMapper, Param, ParamGroup, ParamId},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use burn_amp_kernels::{ClipTable, NormClip, TensorStatus, clip_factors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

use crate::{
    dtype::widened, entries::Entry, error::AmpError, gradient_status::norm,
    gradients::UnscaledGradients, rank::with_rank,
};

/// How gradients are clipped: Burn's `GradientClippingConfig`, with the global norm beside it.
///
/// Used by [`ScaledOptimizer::with_clipping`](crate::ScaledOptimizer::with_clipping), and by [`UnscaledGradients::clip`] where
/// steps are written by hand. The threshold is in the unit of the unscaled gradients. It is above 0; infinity, `"inf"` in JSON,
/// measures and never clips. Clipping by a norm is from "On the difficulty of training recurrent neural networks" (Pascanu et
/// al., 2013).
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{GradScalerConfig, GradientClip};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let scaler = GradScalerConfig::new().init()?;
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let grads = scaler.unscale(scaler.backward(model.forward(input).sum(), &model), &model);
/// let grads = grads.clip(&GradientClip::GlobalNorm(0.01));
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
    Value(#[serde(with = "crate::number")] f64),
    /// Each parameter's gradient whose L2 norm exceeds the threshold is shortened to it. Keras's `clipnorm`.
    Norm(#[serde(with = "crate::number")] f64),
    /// All gradients of the group, as one vector, are multiplied by `threshold / (norm + 1e-6)` where that is below 1.
    /// `torch.nn.utils.clip_grad_norm_`, whose 1e-6 is kept; Keras's `global_clipnorm`, DeepSpeed's `gradient_clipping`.
    GlobalNorm(#[serde(with = "crate::number")] f64),
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
        if *threshold > 0.0 {
            return Ok(());
        }
        Err(AmpError::InvalidValue {
            field,
            value: format!("{self:?}"),
            allowed: "a threshold above 0".into(),
        })
    }
}

/// What the gradients of parameters are multiplied by; others are not.
pub(crate) type Factors = HashMap<ParamId, f32>;

/// Which parameters are clipped how: by the last group that matches, or else by the rule for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClipRules {
    pub(crate) all: Option<GradientClip>,
    pub(crate) groups: Vec<(ParamGroup, GradientClip)>,
}

impl ClipRules {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none() && self.groups.is_empty()
    }

    /// The rules, that for all first.
    fn rules(&self) -> Vec<GradientClip> {
        let groups = self.groups.iter().map(|(_, clip)| *clip);
        self.all.into_iter().chain(groups).collect()
    }

    /// How a device clips these gradients by their norms; none if it has not to.
    pub(crate) fn table(&self, entries: &[Entry]) -> Option<ClipTable> {
        let clips = self.by_norm(entries);
        let device = &entries.first()?.device;
        let clips_any = clips.iter().any(|clip| *clip != NormClip::Not);
        clips_any.then(|| ClipTable::upload(&clips, device))
    }

    /// How each gradient is clipped by a norm.
    fn by_norm(&self, entries: &[Entry]) -> Vec<NormClip> {
        let rules = self.rules();
        let clip = |entry: &Entry| {
            let index = self.rule(entry.id, &entry.path);
            match index.map(|index| (index, rules[index])) {
                Some((_, GradientClip::Norm(threshold))) => NormClip::Own(threshold as f32),
                Some((index, GradientClip::GlobalNorm(threshold))) => NormClip::Joint {
                    group: index as u16,
                    threshold: threshold as f32,
                },
                Some((_, GradientClip::Value(_))) | None => NormClip::Not,
            }
        };
        entries.iter().map(clip).collect()
    }

    /// Limits the values of the gradients that are clipped by value. Nobody has to know whether any is beyond its limit.
    pub(crate) fn limit(&self, grads: &mut GradientsParams, entries: &[Entry]) {
        let rules = self.rules();
        if !(rules.iter()).any(|rule| matches!(rule, GradientClip::Value(_))) {
            return;
        }
        for entry in entries {
            let rule = self.rule(entry.id, &entry.path);
            if let Some(GradientClip::Value(threshold)) = rule.map(|rule| rules[rule]) {
                with_rank!(entry.rank, D => {
                    if let Some(grad) = grads.remove::<D>(entry.id) {
                        grads.register(entry.id, grad.inner().clamp(-threshold, threshold));
                    }
                }, rank => unreachable!("a gradient of rank {rank}"));
            }
        }
    }

    /// The position of a parameter's rule among [`rules`](Self::rules).
    fn rule(&self, id: ParamId, path: &str) -> Option<usize> {
        let first = usize::from(self.all.is_some());
        let group = self
            .groups
            .iter()
            .rposition(|(group, _)| group.matches(&id, Some(path)));
        group
            .map(|group| first + group)
            .or(self.all.is_some().then_some(0))
    }
}

impl UnscaledGradients {
    /// Clips the gradients; the norms before clipping stay in the [`status`](Self::status).
    ///
    /// The norms are those that the unscaling pass has found, so there is no second pass to find them. Gradients within their
    /// threshold are not touched; others are multiplied or limited on their device, and keep shape and dtype. Does not wait for
    /// the device, with one exception: gradients that were changed since (by [`map`](Self::map),
    /// [`mul_scalar`](Self::mul_scalar), [`add`](Self::add), [`params_mut`](Self::params_mut), or by clipping before) and those
    /// of a disabled scaler are measured first, in one pass and one wait, and the status is that of this pass.
    ///
    /// Gradients that overflow stay as they are: the step is skipped, and clipping an infinity would hide it. That holds
    /// for an overflow that is found only now, too. A disabled scaler skips nothing: the step is taken unclipped.
    ///
    /// # Panics
    ///
    /// Where [`try_clip`](Self::try_clip) returns an error, with its message.
    pub fn clip(self, clip: &GradientClip) -> Self {
        self.try_clip(clip)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`clip`](Self::clip), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN; [`AmpError::UnsupportedDType`] if gradients have to be
    /// measured and a gradient's device cannot compute in the gradient's dtype.
    pub fn try_clip(self, clip: &GradientClip) -> Result<Self, AmpError> {
        clip.check("clip")?;
        let rules = ClipRules {
            all: Some(*clip),
            groups: Vec::new(),
        };
        Ok(self.clip_by(&rules, 1.0, false)?.0)
    }

    /// As [`clip`](Self::clip), with a rule for each group of parameters. A parameter that matches several groups follows the
    /// last one, as with Burn's `ModuleOptimizer::with_group`; one that matches none is not clipped. A global norm is that of its
    /// group alone.
    ///
    /// # Panics
    ///
    /// Where [`try_clip_groups`](Self::try_clip_groups) returns an error, with its message.
    pub fn clip_groups(self, groups: &[(ParamGroup, GradientClip)]) -> Self {
        self.try_clip_groups(groups)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`clip_groups`](Self::clip_groups), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_clip`](Self::try_clip).
    pub fn try_clip_groups(self, groups: &[(ParamGroup, GradientClip)]) -> Result<Self, AmpError> {
        for (_, clip) in groups {
            clip.check("clip_groups")?;
        }
        let rules = ClipRules {
            all: None,
            groups: groups.to_vec(),
        };
        Ok(self.clip_by(&rules, 1.0, false)?.0)
    }

    /// Clips by these rules what a guard has multiplied by `factor`, at most 1, in one multiplication. If the `later` step multiplies, it is told
    /// by what; those factors are the ones that a device finds by itself.
    pub(crate) fn clip_by(
        mut self,
        rules: &ClipRules,
        factor: f64,
        later: bool,
    ) -> Result<(Self, Factors), AmpError> {
        let mut factors = Factors::new();
        if self.has_overflow() {
            return Ok((self, factors));
        }
        let statuses = self.measured()?;
        // Also what a change, or a disabled scaler, has let through: clipped, it would look like a gradient.
        if statuses.iter().any(|status| status.non_finite > 0) {
            return Ok((self, factors));
        }
        let mut norms = Norms::of(&self, &statuses)?;
        let is_f64 = |entry: &Entry| entry.gradient == DType::F64;
        if later && !self.entries().iter().any(is_f64) {
            let clips = rules.by_norm(self.entries());
            norms.factors = Some(clip_factors(&clips, &norms.norms));
        }
        let mut plan = Plan::new(rules, factor, self.entries(), &statuses, &norms);
        let clipped = plan.limits.len();
        if later {
            factors = plan.take_factors();
        }
        for (factor, positions) in plan.take_shared(self.entries()) {
            self.scale(&positions, factor)?;
        }
        if !plan.limits.is_empty() {
            self = self.map(&mut plan);
        }
        let status = self.status_mut();
        status.clipped = Some(clipped);
        status.clip_coefficient = plan.coefficients.into_iter().min_by(f64::total_cmp);
        status.clip_norms = plan.norms;
        Ok((self, factors))
    }
}

/// The norms of gradients, in a unit in which they and all of them together are in the range of f64.
struct Norms {
    unit: f64,
    norms: Vec<f64>,
    /// What a device multiplies each gradient by, where that counts.
    factors: Option<Vec<f32>>,
}

impl Norms {
    /// Those that were found. Where they are beyond f64, f64 gradients are measured once more, in a smaller unit: waits for the
    /// device.
    fn of(grads: &UnscaledGradients, statuses: &[TensorStatus]) -> Result<Self, AmpError> {
        let norms: Vec<f64> = statuses.iter().map(|status| status.norm).collect();
        if norm(norms.iter().copied()).is_finite() {
            return Ok(Self {
                unit: 1.0,
                norms,
                factors: None,
            });
        }
        let unit = 2f64.powi(-64);
        let scaled = grads.clone().mul_scalar(unit).measured()?;
        let norm = |(index, entry): (usize, &Entry)| match entry.gradient {
            DType::F64 => scaled[index].norm,
            // Far from that range; but so small, they might not be in that of their dtype.
            _ => norms[index] * unit,
        };
        let norms = grads.entries().iter().enumerate().map(norm).collect();
        Ok(Self {
            unit,
            norms,
            factors: None,
        })
    }
}

/// What is done to one gradient: it is multiplied by a factor of at most 1, then clamped.
struct Limit {
    factor: f64,
    clamp: Option<f64>,
}

/// What is done to which gradient, and the groups that are clipped by their global norm.
#[derive(Default)]
struct Plan {
    limits: HashMap<ParamId, Limit>,
    norms: Vec<f64>,
    coefficients: Vec<f64>,
}

impl ModuleMapper for Plan {
    fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(Limit { factor, clamp }) = self.limits.get(&grad.id) else {
            return grad;
        };
        let grad = match *factor < 1.0 {
            true => grad.map(|grad| widened(grad, |grad| grad.mul_scalar(*factor))),
            false => grad,
        };
        match *clamp {
            // Rounding the threshold is rounding the result: no need to widen.
            Some(threshold) => grad.map(|grad| grad.clamp(-threshold, threshold)),
            None => grad,
        }
    }
}

impl Plan {
    /// What `torch.nn.utils.clip_grad_norm_` adds to the norm.
    const EPSILON: f64 = 1e-6;

    /// With the coefficient of a guard, `guarded`. Of it and that of a norm the smaller holds, as in ZClip; values are clipped after it.
    fn new(
        clip: &ClipRules,
        guarded: f64,
        entries: &[Entry],
        statuses: &[TensorStatus],
        found: &Norms,
    ) -> Self {
        let unit = found.unit;
        let mut plan = Self::default();
        if guarded < 1.0 {
            plan.coefficients.push(guarded);
            for entry in entries {
                let (factor, clamp) = (guarded, None);
                plan.limits.insert(entry.id, Limit { factor, clamp });
            }
        }
        let rule_of: Vec<_> = entries.iter().map(|e| clip.rule(e.id, &e.path)).collect();
        let known = |at: usize| {
            let factors = found.factors.as_ref();
            factors.map(|factors| f64::from(factors[at]))
        };
        for (index, rule) in clip.rules().into_iter().enumerate() {
            let group = (0..entries.len()).filter(|at| rule_of[*at] == Some(index));
            let global = match rule {
                GradientClip::GlobalNorm(threshold) => {
                    let norm = norm(group.clone().map(|at| found.norms[at]));
                    let known = group.clone().next().and_then(known);
                    let found = (threshold * unit / (norm + Self::EPSILON * unit)).min(1.0);
                    let coefficient = known.unwrap_or(found);
                    plan.norms.push(norm / unit);
                    plan.coefficients.push(coefficient);
                    coefficient
                }
                _ => 1.0,
            };
            for at in group {
                let (entry, status, norm) = (&entries[at], &statuses[at], found.norms[at]);
                let (mut factor, mut clamp) = (guarded.min(global), None);
                match rule {
                    GradientClip::Value(threshold) => {
                        clamp = (factor * status.max_abs > threshold).then_some(threshold);
                    }
                    GradientClip::Norm(threshold) if norm > threshold * unit => {
                        factor = factor.min(known(at).unwrap_or(threshold * unit / norm));
                    }
                    _ => {}
                }
                if factor < 1.0 || clamp.is_some() {
                    plan.limits.insert(entry.id, Limit { factor, clamp });
                }
            }
        }
        plan
    }

    /// Takes out those that are a factor alone.
    fn take_factors(&mut self) -> Factors {
        let factors = (self.limits).extract_if(|_, limit| limit.clamp.is_none());
        factors
            .map(|(id, limit)| (id, limit.factor as f32))
            .collect()
    }

    /// Takes out the factors that several gradients share, with the positions of these: one pass does each.
    fn take_shared(&mut self, entries: &[Entry]) -> Vec<(f64, Vec<usize>)> {
        let mut shared: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (position, entry) in entries.iter().enumerate() {
            if let Some(limit) = self
                .limits
                .get(&entry.id)
                .filter(|limit| limit.factor < 1.0)
            {
                let positions = shared.entry(limit.factor.to_bits()).or_default();
                positions.push(position);
            }
        }
        shared.retain(|_, positions| positions.len() > 1);
        for position in shared.values().flatten() {
            if let Some(limit) = self.limits.get_mut(&entries[*position].id) {
                limit.factor = 1.0;
            }
        }
        self.limits
            .retain(|_, limit| limit.factor < 1.0 || limit.clamp.is_some());
        let factors = shared.into_iter();
        factors
            .map(|(bits, positions)| (f64::from_bits(bits), positions))
            .collect()
    }
}
