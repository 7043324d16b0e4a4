//! What else `ScaledOptimizer` wraps: `&mut O`, and an optimizer of whole modules that a user wrote.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use half::bf16;

use crate::support::{Net, Poison, batch, parameters, scaler, state};

/// Two clean steps with an overflow between them.
fn three_steps<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>, mut net: Net) -> Net {
    let device = Device::flex().autodiff();
    for step in 0..3 {
        let loss = net.loss(batch(step, &device));
        let mut grads = optim.backward(loss, &net).into_params();
        if step == 1 {
            let poison = Poison::Gradient {
                path: "head.weight",
                value: f32::INFINITY,
            };
            grads = poison.gradients(grads, &net);
        }
        let grads = scaled_by_hand(optim.scaler(), grads);
        net = optim.step(0.01, net, grads);
    }
    assert_eq!(optim.scaler().counters().stepped(), 2);
    net
}

/// The same two clean steps without scaling.
fn plain_steps(optim: &mut ModuleOptimizer, mut net: Net) -> Net {
    let device = Device::flex().autodiff();
    for step in [0, 2] {
        let loss = net.loss(batch(step, &device));
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optim.step(0.01, net, grads);
    }
    net
}

#[test]
fn a_borrowed_optimizer_keeps_its_state() {
    let net = Net::full(&Device::flex().autodiff());
    let mut plain = AdamConfig::new().init();
    let expected = plain_steps(&mut plain, net.clone());

    let mut inner = AdamConfig::new().init();
    let actual = three_steps(&mut ScaledOptimizer::new(&mut inner, scaler()), net);

    assert!(parameters(&actual) == parameters(&expected));
    assert_eq!(state(&inner), state(&plain));
}

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

#[test]
fn a_users_optimizer_is_not_called_on_a_skipped_step() {
    let net = Net::full(&Device::flex().autodiff());
    let mut plain = AdamConfig::new().init();
    let expected = plain_steps(&mut plain, net.clone());

    let counted = Counted {
        inner: AdamConfig::new().init(),
        calls: 0,
    };
    let mut optim = ScaledOptimizer::new(counted, scaler());
    let actual = three_steps(&mut optim, net);

    let counted = optim.into_inner();
    assert_eq!(counted.calls, 2);
    assert!(parameters(&actual) == parameters(&expected));
    assert_eq!(state(&counted.inner), state(&plain));
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

#[derive(Module, Debug)]
struct Half {
    values: Param<Tensor<1>>,
}

/// Steps bf16 parameters of 1 by a gradient of 0.5, scaled.
fn half_step<O: ModuleOptim>(optim: O) -> f32 {
    let device = Device::flex();
    let values = TensorData::new(vec![bf16::ONE; 3], [3]);
    let half = Half {
        values: Param::from_tensor(Tensor::from_data(values, (&device, DType::BF16))),
    };
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(optim, scaler);
    let scaled = TensorData::new(vec![bf16::from_f32(0.5 * 65536.0); 3], [3]);
    let mut grads = GradientsParams::new();
    grads.register(
        half.values.id,
        Tensor::<1>::from_data(scaled, (&device, DType::BF16)),
    );
    let grads = scaled_by_hand(optim.scaler(), grads);
    let half = optim.step(0.5, half, grads);
    half.values.val().to_data().iter::<f32>().next().unwrap()
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
