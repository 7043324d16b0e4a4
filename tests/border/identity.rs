//! Gradients through the border are those of a scaled loss, divided by the scale: to the last bit.

use burn::tensor::activation::{gelu, relu};
use proptest::{prelude::*, test_runner::TestRunner};
use std::cell::Cell;

use crate::support::*;

/// Casts parameters as a user would, without a border.
struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(param.id, param.val().cast(self.0))
    }
}

/// A network: what is random about it.
#[derive(Clone, Debug)]
struct Plan {
    seed: usize,
    rows: usize,
    width: usize,
    hidden: Vec<usize>,
    layers: Vec<Layer>,
    dtype: FloatDType,
    scale: i32,
    loss_weight: i32,
    checkpointing: bool,
    passes: usize,
}

/// One use of a block, of which several tie its weights: the block's number, its activation, what of it is in f32 (the norm, all, or mostly nothing), and
/// whether its input is added to its output.
type Layer = (usize, usize, usize, bool);

const NORM: usize = 2;
const ALL: usize = 3;

type Block = (Linear, LayerNorm, Linear);

/// Blocks, and a head in f32.
type Net = (Vec<Block>, Linear);

fn net_of(plan: &Plan) -> Net {
    let device = &plan.device();
    let linear = |[from, to]: [usize; 2]| LinearConfig::new(from, to).init(device);
    let blocks = plan.hidden.iter().map(|hidden| {
        let [up, down] = [[plan.width, *hidden], [*hidden, plan.width]].map(linear);
        (up, LayerNormConfig::new(*hidden).init(device), down)
    });
    fill((blocks.collect(), linear([plan.width, 2])), plan.seed)
}

/// In half precision by hand, parameters are cast where they are read. Else the scope around does it.
fn forward(
    whole: &Block,
    input: Tensor<2>,
    (_, activation, island, residual): Layer,
    by_hand: Option<FloatDType>,
) -> Tensor<2> {
    let in_full = |x: Tensor<2>, part: &dyn Fn(Tensor<2>) -> Tensor<2>| match by_hand {
        Some(dtype) => part(x.cast(FloatDType::F32)).cast(dtype),
        None => in_f32(x, part),
    };
    let part = |(up, norm, down): &Block, x| {
        let x = up.forward(x);
        let x = match island {
            NORM => in_full(x, &|x| whole.1.forward(x)),
            _ => norm.forward(x),
        };
        let activations: [fn(Tensor<2>) -> Tensor<2>; 5] = [relu, tanh, gelu, sigmoid, |x| x];
        down.forward(activations[activation](x))
    };
    let output = match (island, by_hand) {
        (ALL, _) => in_full(input.clone(), &|x| part(whole, x)),
        (_, Some(dtype)) => part(&whole.clone().map(&mut Cast(dtype)), input.clone()),
        _ => part(whole, input.clone()),
    };
    if residual { output + input } else { output }
}

fn body(net: &Net, input: Tensor<2>, plan: &Plan, by_hand: Option<FloatDType>) -> Tensor<2> {
    plan.layers.iter().fold(input, |x, layer| {
        forward(&net.0[layer.0 % net.0.len()], x, *layer, by_hand)
    })
}

prop_compose! {
    fn plans()(
        seed in 0usize..10_000,
        [rows, width] in [1usize..4, 1..6],
        hidden in prop::collection::vec(1usize..6, 1..3),
        layers in prop::collection::vec((0usize..4, 0usize..5, 0usize..4, any::<bool>()), 1..7),
        // Of five, the fourth is bf16 where the device has it. In f32 nothing is scaled.
        dtype in (0usize..5).prop_map(|at| match at {
            4 => FloatDType::F32,
            at => halves()[(at / 3).min(halves().len() - 1)],
        }),
        scale in -10i32..21,
        loss_weight in -16i32..1,
        checkpointing in any::<bool>(),
        passes in 1usize..3,
    ) -> Plan {
        Plan {
            seed, rows, width, hidden, layers, dtype, scale, loss_weight, checkpointing, passes,
        }
    }
}

impl Plan {
    fn device(&self) -> Device {
        match self.checkpointing {
            true => device().gradient_checkpointing(),
            false => device(),
        }
    }

    fn input(&self, pass: usize) -> Tensor<2> {
        let shape = [self.rows, self.width];
        random(self.seed + 7 * pass, shape, &self.device()).require_grad()
    }
}

/// The bits of losses, of the gradients of their inputs, and of those of the parameters, summed; those of every NaN are the same. A scaler scales each loss,
/// and unscales.
fn bits_of(
    net: &Net,
    plan: &Plan,
    config: GradScalerConfig,
    body: impl Fn(Tensor<2>) -> Tensor<2>,
) -> Vec<u32> {
    let scaler = GradScaler::new(config).unwrap();
    let (mut found, mut sum) = (Vec::new(), GradientsAccumulator::new());
    for pass in 0..plan.passes {
        let input = plan.input(pass);
        let errors = net.1.forward(body(input.clone())).sub_scalar(0.5);
        let loss = errors.square().mean() * two(plan.loss_weight);
        let grads = scaler.scale(loss.clone()).backward();
        let of_input = input.grad(&grads).unwrap() / scaler.loss_scale();
        assert_eq!([loss.dtype(), of_input.dtype()], [DType::F32; 2]);
        found.extend([values(loss), values(of_input)]);
        sum.accumulate(net, GradientsParams::from_grads(grads, net));
    }
    let grads = scaler.scaled(sum.grads()).unwrap();
    let grads = scaler.unscale(grads, net).unwrap();
    found.extend(all_gradients(grads.params(), net));
    let of_nan = |value: f32| if value.is_nan() { f32::NAN } else { value };
    let bits = found.concat().into_iter().map(of_nan).map(f32::to_bits);
    bits.collect()
}

/// Through the border.
fn by_border(net: &Net, plan: &Plan) -> Vec<u32> {
    let amp = scaled(plan.dtype, two(plan.scale));
    let net = &amp.attach(net.clone());
    let scope = |input| amp.autocast(input, |x| body(net, x, plan, None));
    bits_of(net, plan, at_scale(1.0).with_enabled(false), scope)
}

/// The loss times the scale, gradients divided by it.
fn by_hand(net: &Net, plan: &Plan) -> Vec<u32> {
    bits_of(net, plan, at_scale(two(plan.scale)), |input| {
        let output = body(net, input.cast(plan.dtype), plan, Some(plan.dtype));
        output.cast(FloatDType::F32)
    })
}

#[test]
fn gradients_are_those_of_a_scaled_loss() {
    scaled_losses(200);
}

#[test]
#[ignore = "slow"]
fn sweep_gradients_are_those_of_a_scaled_loss() {
    scaled_losses(1000);
}

/// Outside the scope the head is the plain one.
fn scaled_losses(cases: u32) {
    // On a device that compiles a kernel for each shape, few of the cases.
    let is_device = std::env::var_os("BURN_DEVICE").is_some();
    let cases = if is_device { cases.div_ceil(60) } else { cases };
    let mut runner = TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::with_cases(cases)
    });
    let telling = Cell::new(0);
    let result = runner.run(&plans(), |plan| {
        let net = net_of(&plan);
        let border = by_border(&net, &plan);
        // Near the end of f32's normal range, regions in f32 round what the scaled loss keeps above it.
        let is_tiny = |bits: &u32| (1..(127 - 110) << 23).contains(&(bits & 0x7FFF_FFFF));
        prop_assume!(!border.iter().any(is_tiny));
        prop_assert_eq!(&border, &by_hand(&net, &plan));
        // Overflows and zeros agree too, but say less.
        let values = border.iter().map(|bits| f32::from_bits(*bits));
        let finite = values.clone().all(f32::is_finite);
        let nonzero = values.filter(|value| *value != 0.0).count() > 4;
        telling.set(telling.get() + u32::from(finite && nonzero));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Of a few cases, as on a device, most may overflow.
    let enough = cases < 100 || 2 * telling.get() > cases;
    assert!(enough, "{telling:?} of {cases}");
}
