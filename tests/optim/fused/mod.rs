//! `FusedSgd`, `FusedAdam` and `FusedAdamW` beside Burn's own optimizers.

mod averaged;
mod captured;
mod clipped;
mod follows;
mod groups;
mod half;
mod held;
mod records;
mod settings;
mod unheard;

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, FloatDType, Tensor, TensorData},
};
use burn_amp::ModuleOptim;

use crate::support::{Net, batch};

/// One training step.
pub fn step<O: ModuleOptim>(
    optim: &mut O,
    lr: impl Into<ModuleLearningRate>,
    net: Net,
    step: usize,
) -> Net {
    let device = net.hidden.weight.device();
    let loss = net.loss(batch(step, &device));
    let grads = GradientsParams::from_grads(loss.backward(), &net);
    optim.step(lr.into(), net, grads)
}

pub fn steps<O: ModuleOptim>(optim: &mut O, net: Net, range: std::ops::Range<usize>) -> Net {
    range.fold(net, |net, number| step(optim, 0.01, net, number))
}

/// Gradients of every parameter, made by hand: values that f16 holds, in `dtype`.
pub fn gradients<M: Module>(module: &M, step: usize, dtype: FloatDType) -> GradientsParams {
    struct Make {
        grads: GradientsParams,
        seed: usize,
        dtype: FloatDType,
    }

    impl ModuleVisitor for Make {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let shape = param.shape();
            self.seed += 50;
            let value = |index: usize| ((index * 29 + self.seed) % 128) as f32 / 512.0 - 0.125;
            let values = (0..shape.num_elements()).map(value).collect();
            let data = TensorData::new::<f32, _>(values, shape);
            let device = param.device().inner();
            let grad = Tensor::<D>::from_data(data, &device).cast(self.dtype);
            self.grads.register(param.id, grad);
        }
    }

    let mut make = Make {
        grads: GradientsParams::new(),
        seed: 1000 * (step + 1),
        dtype,
    };
    module.visit(&mut make);
    make.grads
}

pub fn flex() -> Device {
    Device::flex().autodiff()
}
