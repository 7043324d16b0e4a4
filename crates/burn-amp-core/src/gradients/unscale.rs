//! The one pass over the gradients: unscale, test, measure.

use burn::{module::Module, optim::GradientsParams, tensor::DType};
use burn_amp_kernels::ExponentHistogram;

use crate::error::AmpError;
use crate::gradients::pass::{Pass, handles, summarize};
use crate::gradients::{Entries, Entry, GradientStatus, UnscaledGradients};
use crate::values::{optimizer_dtype, working_dtype};

/// Multiplies gradients by `inverse`, rounded to f32, and measures the result.
///
/// Counts values from `edge` on, where there is one. Results are in f32 (f64 for f64 parameters), unless `in_own_dtype` asks for the
/// parameter's: then a gradient in that dtype is multiplied in place and measured as rounded. Waits for each device once, for one
/// small transfer.
pub(crate) fn unscale(
    mut grads: GradientsParams,
    mut entries: Vec<Entry>,
    inverse: f64,
    in_own_dtype: bool,
    edge: Option<f32>,
) -> Result<UnscaledGradients, AmpError> {
    let mut pass = Pass::new(edge, entries.len());
    for (position, entry) in entries.iter().enumerate() {
        let Some(mut grad) = entry.take(&mut grads) else {
            continue;
        };
        let working = working_dtype(entry.parameter);
        // The kernels widen half precision themselves.
        if working_dtype(grad.dtype()) != working {
            grad = grad.cast(working);
        }
        let wanted = DType::from(optimizer_dtype(entry.parameter, in_own_dtype));
        let keep_dtype = in_own_dtype && grad.dtype() == wanted;
        pass.push::<1>(position, grad.into_handle(), keep_dtype);
    }
    log_unknown(grads.len());
    pass.unscale(inverse as f32)?;
    let (mut statuses, _) = pass.read(Vec::new())?;
    let mut target = GradientsParams::new();
    let mut is_rounded = false;
    for (position, mut grad) in pass.into_tensors() {
        let entry = &mut entries[position];
        let wanted = optimizer_dtype(entry.parameter, in_own_dtype);
        if grad.dtype() != DType::from(wanted) {
            grad = grad.cast(wanted);
            is_rounded = true;
        }
        (entry.gradient, entry.is_plain) = (grad.dtype(), true);
        entry.put(&mut target, grad);
    }
    // What counts is what the optimizer gets: rounding can overflow, and can end in zeros.
    if is_rounded {
        (statuses, _) = handles(&target, &entries, edge).inspect(Vec::new())?;
    }
    Ok(UnscaledGradients::new(target, entries, Some(statuses)))
}

/// Burn's `step` ignores them too.
pub(crate) fn log_unknown(count: usize) {
    if count > 0 {
        debug!("{count} gradients belong to no parameter of the module and are dropped");
    }
}

/// Measures gradients as they are, in f32 (f64 for f64 gradients), and leaves them untouched.
///
/// For runs without a scaler, and for a look at scaled gradients. Gradients of parameters that are not in
/// `module` are not seen. Waits for each device once, for one small transfer.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).with_bias(false).init(&device);
/// let loss = model.forward(Tensor::<2>::zeros([8, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
///
/// let status = burn_amp::gradients::inspect(&grads, &model)?;
/// assert!(status.is_all_zero());
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// # Errors
///
/// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if a
/// gradient does not have its parameter's shape.
pub fn inspect<M: Module>(grads: &GradientsParams, module: &M) -> Result<GradientStatus, AmpError> {
    let entries = Entries::of(grads, module)?.gradients;
    let (each, _) = handles(grads, &entries, None).inspect(Vec::new())?;
    Ok(summarize(&entries, &each))
}

/// Counts the values of all gradients of `module`'s parameters by binary exponent, in one pass.
///
/// To see how far gradients reach below the range of f16, and which loss scale lifts them: what has exponent `e`
/// has `e + log2(scale)` in a scaled gradient, and f16 holds -24 to 15. Gradients are taken as they are, in f16, bf16,
/// f32 or f64, and are left untouched. Waits for each device once, for one small transfer.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).with_bias(false).init(&device);
/// let input = Tensor::<2>::ones([1, 4], &device) * 1e-8;
/// let grads = GradientsParams::from_grads(model.forward(input).sum().backward(), &model);
///
/// let counts = burn_amp::gradients::histogram(&grads, &model)?;
/// assert_eq!(counts.count(-27), Some(8)); // 2^-27 <= 1e-8 < 2^-26
/// assert_eq!(counts.below_exponent(-24), 8); // all of them are zero in f16
/// assert_eq!(counts.below_exponent(-24 - 16), 0); // and none at a scale of 65536
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// # Errors
///
/// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if
/// a gradient does not have its parameter's shape.
pub fn histogram<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Result<ExponentHistogram, AmpError> {
    let entries = Entries::of(grads, module)?.gradients;
    handles(grads, &entries, None).histogram()
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        optim::SgdConfig,
        tensor::{Device, Tensor},
    };

    use crate::{
        GradScalerConfig, GradientClip, ScaledOptimizer, Scaler, UnscaledGradients,
        gradients::pass::READS,
        hook::{Hook, Proposed, Verdict},
    };

    fn reads(action: impl FnOnce() -> UnscaledGradients) -> (u32, UnscaledGradients) {
        READS.set(0);
        let grads = action();
        (READS.get(), grads)
    }

    fn scaler(enabled: bool) -> Scaler {
        let config = GradScalerConfig::new().with_enabled(enabled);
        config.schedule().unwrap().try_into().unwrap()
    }

    #[test]
    fn clipping_waits_only_for_gradients_that_were_changed() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(4, 2).init(&device);
        let scaler = scaler(true);
        let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
        let clip = GradientClip::GlobalNorm(0.5);

        let (count, grads) = reads(|| {
            scaler
                .unscale(scaler.backward(loss, &model), &model)
                .unwrap()
        });
        assert_eq!(count, 1);
        let (count, clipped) = reads(|| grads.clone().clip(&clip).unwrap());
        assert_eq!(count, 0);
        assert!(clipped.status().clipped().is_some());
        let (count, _) = reads(|| grads.mul_scalar(2.0).clip(&clip).unwrap());
        assert_eq!(count, 1);
    }

    #[test]
    fn without_a_scale_only_what_is_asked_for_waits() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(4, 2).init(&device);
        let scaler = scaler(false);
        let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
        let (count, grads) = reads(|| {
            let grads = scaler.backward(loss, &model);
            scaler.unscale(grads, &model).unwrap()
        });
        assert_eq!(count, 0);
        let asked = |grads: &UnscaledGradients| {
            reads(|| {
                assert!(grads.status().norm() > 0.0 && !grads.has_overflow());
                grads.clone()
            })
        };
        assert_eq!([asked(&grads).0, asked(&grads).0], [1, 0]);
        // What was asked is not measured again.
        let clip = GradientClip::GlobalNorm(0.5);
        let (count, clipped) = reads(|| grads.clone().clip(&clip).unwrap());
        assert_eq!((count, asked(&clipped).0), (0, 0));
        assert_eq!(asked(&grads.mul_scalar(2.0)).0, 1);
    }

    /// Rejects steps whose norm is at least this.
    #[derive(Clone, Debug)]
    struct Below(f64);

    impl Hook for Below {
        fn name(&self) -> &str {
            "below"
        }

        fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
            match step.status().map(|status| status.norm()) {
                Some(norm) if norm >= self.0 => Verdict::Reject {
                    reason: format!("the norm is {norm}"),
                },
                Some(_) => Verdict::Apply,
                None => Verdict::Wait,
            }
        }
    }

    #[test]
    fn a_hook_that_looks_at_the_norm_waits_no_more_than_a_step_does() {
        let device = Device::flex().autodiff();
        for (enabled, expected) in [(true, 1), (false, 1)] {
            let mut model: Linear = LinearConfig::new(4, 2).init(&device);
            let optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler(enabled));
            let mut optim = optim.with_hook(Below(100.0));
            for factor in [1.0, 1.1, 0.9, 1.0, 100.0, 1.0] {
                let output = model.forward(Tensor::<2>::ones([3, 4], &device));
                let grads = optim.backward((output * factor).sum(), &model);
                READS.set(0);
                model = optim.step(0.01, model, grads);
                assert_eq!(READS.get(), expected, "{factor}");
            }
            assert_eq!(optim.scaler().counters().guarded(), 1);
        }
    }
}
