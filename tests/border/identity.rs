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

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    norm: LayerNorm,
    down: Linear,
}

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Block>,
    head: Linear,
}

impl Block {
    /// In half precision by hand, parameters are cast where they are read. Else the scope around does it.
    fn forward(&self, input: Tensor<2>, layer: Layer, by_hand: Option<FloatDType>) -> Tensor<2> {
        let (_, activation, island, residual) = layer;
        let in_full = |x: Tensor<2>, part: &dyn Fn(Tensor<2>) -> Tensor<2>| match by_hand {
            Some(dtype) => part(x.cast(FloatDType::F32)).cast(dtype),
            None => in_f32(x, part),
        };
        let part = |block: &Self, x| {
            let x = block.up.forward(x);
            let x = match island {
                NORM => in_full(x, &|x| self.norm.forward(x)),
                _ => block.norm.forward(x),
            };
            let activations: [fn(Tensor<2>) -> Tensor<2>; 5] = [relu, tanh, gelu, sigmoid, |x| x];
            block.down.forward(activations[activation](x))
        };
        let output = match (island, by_hand) {
            (ALL, _) => in_full(input.clone(), &|x| part(self, x)),
            (_, Some(dtype)) => part(&self.clone().map(&mut Cast(dtype)), input.clone()),
            _ => part(self, input.clone()),
        };
        if residual { output + input } else { output }
    }
}

impl Net {
    fn new(plan: &Plan, device: &Device) -> Self {
        let blocks = plan.hidden.iter().map(|hidden| Block {
            up: LinearConfig::new(plan.width, *hidden).init(device),
            norm: LayerNormConfig::new(*hidden).init(device),
            down: LinearConfig::new(*hidden, plan.width).init(device),
        });
        let blocks = blocks.collect();
        let head = LinearConfig::new(plan.width, 2).init(device);
        fill(Self { blocks, head }, plan.seed)
    }

    fn body(&self, input: Tensor<2>, plan: &Plan, by_hand: Option<FloatDType>) -> Tensor<2> {
        plan.layers.iter().fold(input, |x, layer| {
            let block = &self.blocks[layer.0 % self.blocks.len()];
            block.forward(x, *layer, by_hand)
        })
    }
}

prop_compose! {
    fn plans()(
        seed in 0usize..10_000,
        [rows, width] in [1usize..4, 1..6],
        hidden in prop::collection::vec(1usize..6, 1..3),
        layers in prop::collection::vec((0usize..4, 0usize..5, 0usize..4, any::<bool>()), 1..7),
        // Of four, the last is bf16 where the device has it.
        dtype in (0usize..4).prop_map(|at| halves()[(at / 3).min(halves().len() - 1)]),
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

/// The bits of losses, of the gradients of their inputs, and of those of the parameters, summed. A scaler scales each loss, and unscales.
fn bits_of(
    net: &Net,
    plan: &Plan,
    scaler: Option<&GradScaler>,
    body: impl Fn(Tensor<2>) -> Tensor<2>,
) -> Vec<Vec<u32>> {
    let (mut found, mut sum) = (Vec::new(), GradientsAccumulator::new());
    for pass in 0..plan.passes {
        let input = plan.input(pass);
        let errors = net.head.forward(body(input.clone())).sub_scalar(0.5);
        let loss = errors.square().mean() * two(plan.loss_weight);
        found.push(bits(loss.clone()));
        let (loss, scale) = match scaler {
            Some(scaler) => (scaler.scale(loss), scaler.loss_scale()),
            None => (loss, 1.0),
        };
        let grads = loss.backward();
        found.push(bits(input.grad(&grads).unwrap() / scale));
        sum.accumulate(net, GradientsParams::from_grads(grads, net));
    }
    let sum = sum.grads();
    found.push(match scaler {
        Some(scaler) => {
            let grads = scaler.unscale(scaler.scaled(sum).unwrap(), net).unwrap();
            gradient_bits(grads.params(), net)
        }
        None => gradient_bits(&sum, net),
    });
    found
}

/// Through the border.
fn by_border(net: &Net, plan: &Plan, amp: &MixedPrecision) -> Vec<Vec<u32>> {
    let net = &amp.attach(net.clone());
    let scope = |input| amp.autocast(input, |x| net.body(x, plan, None));
    bits_of(net, plan, None, scope)
}

/// The loss times the scale, gradients divided by it.
fn by_hand(net: &Net, plan: &Plan) -> Vec<Vec<u32>> {
    let scaler = GradScaler::new(at_scale(two(plan.scale))).unwrap();
    bits_of(net, plan, Some(&scaler), |input| {
        let output = net.body(input.cast(plan.dtype), plan, Some(plan.dtype));
        output.cast(FloatDType::F32)
    })
}

/// The model as it is, in f32.
fn plain(net: &Net, plan: &Plan) -> Vec<Vec<u32>> {
    bits_of(net, plan, None, |input| net.body(input, plan, None))
}

/// Plans that are checked. On a device that compiles a kernel for each shape, few of the cases.
fn check(cases: u32, check: impl Fn(Plan) -> Result<(), TestCaseError>) {
    let is_device = std::env::var_os("BURN_DEVICE").is_some();
    let cases = if is_device { cases.div_ceil(60) } else { cases };
    let mut runner = TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::with_cases(cases)
    });
    let result = runner.run(&plans(), check);
    result.unwrap_or_else(|error| panic!("{error}"));
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

fn scaled_losses(cases: u32) {
    let (all, telling) = (Cell::new(0u32), Cell::new(0u32));
    check(cases, |plan| {
        let net = Net::new(&plan, &plan.device());
        let amp = scaled(plan.dtype, two(plan.scale));
        let border = by_border(&net, &plan, &amp);
        // Near the end of f32's normal range, regions in f32 round what the scaled loss keeps above it.
        let is_tiny = |bits: &u32| (1..(127 - 110) << 23).contains(&(bits & 0x7FFF_FFFF));
        prop_assume!(!border.iter().flatten().any(is_tiny));
        prop_assert_eq!(&border, &by_hand(&net, &plan));
        // Overflows and zeros agree too, but say less.
        let values = border.iter().flatten().map(|bits| f32::from_bits(*bits));
        let finite = values.clone().all(f32::is_finite);
        let nonzero = values.filter(|value| *value != 0.0).count() > 4;
        all.set(all.get() + 1);
        telling.set(telling.get() + u32::from(finite && nonzero));
        Ok(())
    });
    // Of a few cases, as on a device, most may overflow.
    let enough = all.get() < 100 || 2 * telling.get() > all.get();
    assert!(enough, "{telling:?} of {all:?}");
}

#[test]
fn outside_the_scope_the_model_is_the_plain_one() {
    check(60, |plan| {
        let net = Net::new(&plan, &plan.device());
        let expected = plain(&net, &plan);
        let amp = scaled(plan.dtype, two(plan.scale));
        prop_assert_eq!(&plain(&amp.attach(net.clone()), &plan), &expected);
        prop_assert_eq!(by_border(&net, &plan, &MixedPrecision::f32()), expected);
        Ok(())
    });
}
