use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{AdamConfig, GradientsAccumulator, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_amp::{
    AccumulationConfig, EmaConfig, GradScalerConfig, GradientClip, ScaledOptimizer,
    gradients::UnscaledGradients, torch::GradScaler,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::model::Mlp;

/// Micro-batches in a window.
pub const WINDOW: u32 = 4;
/// So small that every step is clipped.
const MAX_NORM: f64 = 1e-6;

/// A way to train.
pub struct Case {
    pub name: &'static str,
    pub held: &'static str,
    pub moved: &'static str,
    /// The same made by hand.
    pub peer: Option<&'static str>,
    model: Option<Mlp>,
    optim: ScaledOptimizer<ModuleOptimizer>,
    by_hand: ByHand,
}

enum ByHand {
    Nothing,
    Clip,
    Accumulate(GradientsAccumulator<Mlp>, u32),
    Average(Averages),
}

fn case(
    width: usize,
    (name, held, moved): (&'static str, &'static str, &'static str),
    options: impl FnOnce(ScaledOptimizer<ModuleOptimizer>) -> ScaledOptimizer<ModuleOptimizer>,
) -> Case {
    let scaler = GradScaler::new(GradScalerConfig::new()).expect("valid");
    Case {
        name,
        held,
        moved,
        peer: None,
        model: Some(Mlp::new(width, &Device::flex().autodiff())),
        optim: options(ScaledOptimizer::new(AdamConfig::new().init(), scaler)),
        by_hand: ByHand::Nothing,
    }
}

impl Case {
    fn against(mut self, peer: &'static str) -> Self {
        self.peer = Some(peer);
        self
    }

    fn by_hand(mut self, by_hand: ByHand) -> Self {
        self.by_hand = by_hand;
        self
    }

    pub fn parameters(&self) -> usize {
        self.model.as_ref().map_or(0, Module::num_params)
    }

    /// Forward, backward, step; the time of the step alone.
    pub fn micro_batch(&mut self) -> Duration {
        let device = Device::flex().autodiff();
        let model = self.model.take().expect("it comes back");
        let grads = self.optim.backward(model.loss(&device), &model);
        let lr = 1e-5;
        let start = Instant::now();
        let model = match &mut self.by_hand {
            ByHand::Nothing => self.optim.step(lr, model, grads),
            ByHand::Clip => {
                let grads = clip_by_hand(self.optim.unscale(grads, &model).unwrap());
                self.optim.step(lr, model, grads)
            }
            ByHand::Accumulate(window, count) => {
                window.accumulate(&model, grads.into_params());
                *count += 1;
                if *count % WINDOW == 0 {
                    let grads = self.optim.scaler().scaled(window.grads()).unwrap();
                    let grads = self.optim.unscale(grads, &model).unwrap();
                    let grads = grads.mul_scalar(1.0 / f64::from(WINDOW));
                    self.optim.step(lr, model, grads)
                } else {
                    model
                }
            }
            ByHand::Average(averages) => {
                let model = self.optim.step(lr, model, grads);
                model.visit(averages);
                model
            }
        };
        self.model = Some(model);
        start.elapsed()
    }
}

pub fn all(width: usize) -> Vec<Case> {
    let clip = |clip: GradientClip| move |optim: ScaledOptimizer<_>| optim.with_clipping(clip);
    let window = |rule| {
        move |optim: ScaledOptimizer<_>| {
            let config = AccumulationConfig::new(WINDOW).with_skip_micro_batch(rule);
            optim.with_accumulation(config)
        }
    };
    let ema = |optim: ScaledOptimizer<_>| optim.with_ema(EmaConfig::new());
    let global = |max_norm| GradientClip::GlobalNorm(max_norm);
    let norm = GradientClip::Norm(MAX_NORM);
    let value = GradientClip::Value(1e-12);
    vec![
        case(width, ("plain", "0", "0"), |optim| optim),
        case(width, ("global norm, within", "0", "0"), clip(global(1e9))),
        case(
            width,
            ("global norm, clipped", "0", "8"),
            clip(global(MAX_NORM)),
        )
        .against("global norm, by hand"),
        case(width, ("global norm, by hand", "0", "20"), |optim| optim).by_hand(ByHand::Clip),
        case(width, ("norm, clipped", "0", "8"), clip(norm)),
        case(width, ("value, clipped", "0", "8"), clip(value)),
        case(
            width,
            ("accumulation, window skipped", "4", "12"),
            window(false),
        )
        .against("accumulation, by hand"),
        case(
            width,
            ("accumulation, micro-batch skipped", "4", "20"),
            window(true),
        ),
        case(width, ("accumulation, by hand", "4", "12"), |optim| optim)
            .by_hand(ByHand::Accumulate(GradientsAccumulator::new(), 0)),
        case(width, ("EMA", "4", "12"), ema).against("EMA, by hand"),
        case(width, ("EMA, by hand", "4", "28"), |optim| optim)
            .by_hand(ByHand::Average(Averages::default())),
        case(width, ("all", "8", "12 to 32"), |optim| {
            ema(window(false)(clip(global(MAX_NORM))(optim)))
        }),
    ]
}

/// As `torch.nn.utils.clip_grad_norm_`: the norm of each gradient, which is another pass, and a multiplication.
fn clip_by_hand(grads: UnscaledGradients) -> UnscaledGradients {
    struct Norms(f64);

    impl ModuleMapper for Norms {
        fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let squares = grad.val().square().sum().into_scalar::<f32>();
            self.0 += f64::from(squares);
            grad
        }
    }

    let mut norms = Norms(0.0);
    let grads = grads.map(&mut norms);
    let coefficient = MAX_NORM / (norms.0.sqrt() + 1e-6);
    grads.mul_scalar(coefficient.min(1.0))
}

/// `momentum * average + (1 - momentum) * value`, of Burn's operations.
#[derive(Default)]
struct Averages {
    vectors: HashMap<ParamId, Tensor<1>>,
    matrices: HashMap<ParamId, Tensor<2>>,
}

impl ModuleVisitor for Averages {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base().inner();
        let shape = value.dims();
        let average = |old: Option<Tensor<D>>| match old {
            Some(old) => old.mul_scalar(0.99) + value.mul_scalar(0.01),
            None => value,
        };
        // All parameters here are of rank 1 or 2.
        match D {
            1 => {
                let old = self.vectors.remove(&param.id).map(|old| old.reshape(shape));
                let count = shape.iter().product::<usize>();
                self.vectors.insert(param.id, average(old).reshape([count]));
            }
            _ => {
                let old = self
                    .matrices
                    .remove(&param.id)
                    .map(|old| old.reshape(shape));
                let rows = shape[0];
                let columns = shape.iter().skip(1).product::<usize>();
                let average = average(old).reshape([rows, columns]);
                self.matrices.insert(param.id, average);
            }
        }
    }
}
