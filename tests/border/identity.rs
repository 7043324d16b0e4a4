//! Gradients through the border are those of a scaled loss, divided by the scale: to the last bit.

use burn::{
    module::{Reparameterization, Reparameterizer},
    tensor::activation::{gelu, relu},
};
use proptest::{prelude::*, test_runner::TestRunner};
use std::cell::Cell;

use crate::support::*;

thread_local! {
    /// Whether the model that is cast by hand is outside half precision.
    static FULL: Cell<bool> = const { Cell::new(true) };
}

/// Casts parameters as a user would, without a border.
struct ByHand(FloatDType);

#[derive(Module, Debug)]
struct CastByHand {
    #[module(skip)]
    dtype: FloatDType,
}

impl Reparameterizer for ByHand {
    type Reparam = CastByHand;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<CastByHand>) {
        (param, Some(CastByHand { dtype: self.0 }))
    }
}

impl Reparameterization for CastByHand {
    const NAME: &'static str = "by_hand";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        match FULL.get() {
            true => base,
            false => base.cast(self.dtype),
        }
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

/// One use of a block; several uses of one block tie its weights.
#[derive(Clone, Debug)]
struct Layer {
    block: usize,
    activation: usize,
    island: Island,
    rounds: usize,
    residual: bool,
}

#[derive(Clone, Copy, Debug)]
enum Island {
    None,
    Norm,
    All,
}

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

/// Runs a part in f32.
type InFull<'a> = dyn Fn(Tensor<2>, &dyn Fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> + 'a;

impl Block {
    fn forward(&self, input: Tensor<2>, layer: &Layer, in_full: &InFull<'_>) -> Tensor<2> {
        let part = |x: Tensor<2>| {
            let x = self.up.forward(x);
            let x = match layer.island {
                Island::Norm => in_full(x, &|x| self.norm.forward(x)),
                _ => self.norm.forward(x),
            };
            let x = match layer.activation {
                0 => relu(x),
                1 => tanh(x),
                2 => gelu(x),
                3 => sigmoid(x),
                _ => x,
            };
            self.down.forward(x)
        };
        let output = match layer.island {
            Island::All => in_full(input.clone(), &part),
            _ => part(input.clone()),
        };
        match layer.residual {
            true => output + input,
            false => output,
        }
    }
}

impl Net {
    fn new(plan: &Plan, device: &Device) -> Self {
        let blocks = plan.hidden.iter().map(|hidden| Block {
            up: LinearConfig::new(plan.width, *hidden).init(device),
            norm: LayerNormConfig::new(*hidden).init(device),
            down: LinearConfig::new(*hidden, plan.width).init(device),
        });
        let net = Self {
            blocks: blocks.collect(),
            head: LinearConfig::new(plan.width, 2).init(device),
        };
        fill(net, plan.seed)
    }

    fn body(&self, input: Tensor<2>, plan: &Plan, in_full: &InFull<'_>) -> Tensor<2> {
        plan.layers.iter().fold(input, |x, layer| {
            let block = &self.blocks[layer.block % self.blocks.len()];
            (0..layer.rounds).fold(x, |x, _| block.forward(x, layer, in_full))
        })
    }

    /// The loss of what comes out of the body.
    fn loss(&self, output: Tensor<2>, plan: &Plan) -> Tensor<1> {
        let errors = self.head.forward(output).sub_scalar(0.5);
        errors.square().mean() * two(plan.loss_weight)
    }
}

fn islands() -> impl Strategy<Value = Island> {
    use Island::{All, None, Norm};
    prop_oneof![2 => Just(None), 1 => Just(Norm), 1 => Just(All)]
}

prop_compose! {
    fn layers()(
        block in 0usize..4,
        activation in 0usize..5,
        island in islands(),
        rounds in 1usize..3,
        residual in any::<bool>(),
    ) -> Layer {
        Layer { block, activation, island, rounds, residual }
    }
}

prop_compose! {
    fn plans()(
        seed in 0usize..10_000,
        rows in 1usize..4,
        width in 1usize..6,
        hidden in prop::collection::vec(1usize..6, 1..3),
        layers in prop::collection::vec(layers(), 1..5),
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

/// The bits of the losses, of the gradients of the inputs, and of those of the parameters, summed.
type Bits = Vec<Vec<u32>>;

/// Losses of some inputs, scaled for their backward pass and with gradients that are unscaled, and the sum of those of the
/// parameters as they come.
fn passes<M: Module>(
    net: &M,
    plan: &Plan,
    loss: impl Fn(Tensor<2>) -> Tensor<1>,
    scale: impl Fn(Tensor<1>) -> Tensor<1>,
    unscale: impl Fn(Tensor<2>) -> Tensor<2>,
) -> (Bits, GradientsParams) {
    let (mut found, mut sum) = (Vec::new(), GradientsAccumulator::new());
    for pass in 0..plan.passes {
        let input = plan.input(pass);
        let loss = loss(input.clone());
        found.push(bits(loss.clone()));
        let grads = scale(loss).backward();
        found.push(bits(unscale(input.grad(&grads).unwrap())));
        sum.accumulate(net, GradientsParams::from_grads(grads, net));
    }
    (found, sum.grads())
}

/// Burn's own `backward`.
fn unscaled(net: &Net, plan: &Plan, loss: impl Fn(Tensor<2>) -> Tensor<1>) -> Bits {
    let (mut found, grads) = passes(net, plan, loss, |loss| loss, |grad| grad);
    found.push(gradient_bits(&grads, net));
    found
}

/// Through the border.
fn by_border(net: &Net, plan: &Plan, amp: &MixedPrecision) -> Bits {
    let net = net.clone().apply_reparameterization(amp.clone());
    unscaled(&net, plan, |input| {
        let body = |x| net.body(x, plan, &|x, part| in_f32(x, part));
        net.loss(amp.autocast(input, body), plan)
    })
}

/// The loss times the scale, gradients divided by it.
fn by_hand(net: &Net, plan: &Plan) -> Bits {
    let full = |x: Tensor<2>, part: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        FULL.set(true);
        let output = part(x.cast(FloatDType::F32));
        FULL.set(false);
        output.cast(plan.dtype)
    };
    let net = net.clone().apply_reparameterization(ByHand(plan.dtype));
    let scaler = at_scale(two(plan.scale)).init().unwrap();
    let loss = |input: Tensor<2>| {
        FULL.set(false);
        let output = net.body(input.cast(plan.dtype), plan, &full);
        FULL.set(true);
        net.loss(output.cast(FloatDType::F32), plan)
    };
    let scale = |loss| scaler.scale(loss);
    let (mut found, sum) = passes(&net, plan, loss, scale, |grad| grad / two(plan.scale));
    let grads = scaler.unscale(scaler.scaled(sum).unwrap(), &net).unwrap();
    found.push(gradient_bits(grads.params(), &net));
    found
}

/// The model as it is, in f32.
fn plain(net: &Net, plan: &Plan) -> Bits {
    let body = |input| net.body(input, plan, &|x, part| part(x));
    unscaled(net, plan, |input| net.loss(body(input), plan))
}

/// On a device that compiles a kernel for each shape, few of the cases.
fn runner(cases: u32) -> TestRunner {
    let cases = match std::env::var_os("BURN_DEVICE") {
        Some(_) => cases.div_ceil(60),
        None => cases,
    };
    TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::with_cases(cases)
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

fn scaled_losses(cases: u32) {
    let (all, telling) = (Cell::new(0u32), Cell::new(0u32));
    let result = runner(cases).run(&plans(), |plan| {
        let net = Net::new(&plan, &plan.device());
        let amp = scaled(plan.dtype, two(plan.scale));
        let border = by_border(&net, &plan, &amp);
        // Near the end of f32's normal range, parts in f32 round what the scaled loss keeps above it.
        let is_tiny = |bits: &u32| (1..(127 - 110) << 23).contains(&(bits & 0x7FFF_FFFF));
        prop_assume!(!border.iter().flatten().any(is_tiny));
        prop_assert_eq!(&border, &by_hand(&net, &plan));
        // Overflows and zeros agree too, but say less.
        let values = border.iter().flatten().map(|bits| f32::from_bits(*bits));
        let (mut finite, mut nonzero) = (true, 0);
        for value in values {
            finite &= value.is_finite();
            nonzero += usize::from(value != 0.0);
        }
        all.set(all.get() + 1);
        telling.set(telling.get() + u32::from(finite && nonzero > 4));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Of a few cases, as on a device, most may overflow.
    let enough = all.get() < 100 || 2 * telling.get() > all.get();
    assert!(enough, "{telling:?} of {all:?}");
}

#[test]
fn outside_the_scope_the_model_is_the_plain_one() {
    let result = runner(60).run(&plans(), |plan| {
        let net = Net::new(&plan, &plan.device());
        let expected = plain(&net, &plan);
        let amp = scaled(plan.dtype, two(plan.scale));
        let model = net.clone().apply_reparameterization(amp);
        prop_assert_eq!(&plain(&model, &plan), &expected);

        let f32 = MixedPrecision::f32();
        prop_assert_eq!(by_border(&net, &plan, &f32), expected);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
