//! What else `ScaledOptimizer` wraps: `&mut O`, and an optimizer of whole modules that a user wrote.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{scaled_by_hand, small::Small};
use half::bf16;

use crate::support::{parameters, scaler, state};

/// Counts its calls.
struct Counted {
    inner: ModuleOptimizer,
    calls: usize,
}

impl ModuleOptim for Counted {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.calls += 1;
        self.inner.step(lr, module, grads)
    }
}

/// Two clean steps with an overflow between them, by an optimizer that is borrowed: its state stays.
#[test]
fn a_users_optimizer_is_not_called_on_a_skipped_step() {
    let mut counted = Counted {
        inner: AdamConfig::new().init(),
        calls: 0,
    };
    let mut owned = ScaledOptimizer::new(counted.inner.clone(), scaler());
    let expected = Small::new(DType::F32).train(&mut owned, 0..3, &[1]);
    let mut optim = ScaledOptimizer::new(&mut counted, scaler());
    let found = Small::new(DType::F32).train(&mut optim, 0..3, &[1]);

    assert_eq!(optim.scaler().counters().stepped(), 2);
    assert_eq!(counted.calls, 2);
    assert_eq!(parameters(&found), parameters(&expected));
    assert_eq!(state(&counted.inner), state(owned.optimizer()));
}

/// Gradient descent that knows how to step a half-precision parameter with an f32 gradient.
struct Widening;

impl ModuleOptim for Widening {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        struct Descend(f64, GradientsParams);

        impl ModuleMapper for Descend {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(grad) = self.1.remove::<D>(param.id) else {
                    return param;
                };
                assert_eq!(grad.dtype(), DType::F32);
                param.map(|tensor| {
                    let dtype = tensor.dtype();
                    let wide = tensor.inner().cast(FloatDType::F32);
                    let stepped = wide - grad.mul_scalar(self.0);
                    stepped.cast(FloatDType::from(dtype))
                })
            }
        }

        module.map(&mut Descend(lr.base(), grads))
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        parameter == gradient || parameter == DType::BF16
    }
}

/// Steps bf16 parameters of 1 by a gradient of 0.5, scaled.
fn half_step<O: ModuleOptim>(optim: O) -> f32 {
    let device = Device::flex();
    let values = TensorData::new(vec![bf16::ONE; 3], [3]);
    let half = Tensor::<1>::from_data(values, (&device, DType::BF16));
    let half = Param::from_tensor(half);
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(optim, scaler);
    let scaled = TensorData::new(vec![bf16::from_f32(0.5 * 65536.0); 3], [3]);
    let mut grads = GradientsParams::new();
    let scaled = Tensor::<1>::from_data(scaled, (&device, DType::BF16));
    grads.register(half.id, scaled);
    let grads = scaled_by_hand(optim.scaler(), grads);
    let half = optim.step(0.5, half, grads);
    half.val().to_data().iter::<f32>().next().unwrap()
}

#[test]
fn a_users_optimizer_may_accept_wider_gradients() {
    assert_eq!(half_step(Widening), 0.75);
    // `accepts` must go through the borrow as well.
    assert_eq!(half_step(&mut Widening), 0.75);
}

#[test]
fn wrapping_keeps_threads_possible() {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
}
