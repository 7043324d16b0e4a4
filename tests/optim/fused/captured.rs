//! Steps that a device records once and makes again: the same bits as those that are made one by one.

mod leaves;

use burn::nn::{Dropout, Embedding, loss::CrossEntropyLossConfig, transformer::TransformerEncoder};
use burn_amp_tests::prelude::*;

use std::cell::Cell;

use super::unheard::{Event, Net, config, event, is_flex};

pub(super) type Batch = (Tensor<2>, Tensor<1>);

/// A batch, and what its loss is multiplied by.
pub(super) fn batch(step: usize, event: Event, rows: usize, device: &Device) -> Batch {
    let value = |index: usize| ((index * 13 + step * 7) % 32) as f32 / 16.0 - 1.0;
    let values: Vec<f32> = (0..rows * 6).map(value).collect();
    let factor = match event {
        Event::Nothing => 1.0,
        Event::Overflow => 1e9,
        Event::Nan => f32::NAN,
    };
    (
        Tensor::<1>::from_floats(values.as_slice(), device).reshape([rows, 6]),
        Tensor::from_floats([factor], device),
    )
}

pub(super) fn loss(amp: &MixedPrecision, net: &Net, (x, factor): Batch) -> Tensor<1> {
    let output = amp.autocast(x, |x| net.forward(x));
    (output - 0.5).square().mean() * factor
}

/// The same steps, one by one and captured.
fn assert_same<O: ModuleOptim>(optim: impl Fn() -> O, steps: usize) {
    assert_same_with(optim, steps, |optim| optim);
}

fn assert_same_with<O: ModuleOptim>(
    optim: impl Fn() -> O,
    steps: usize,
    with: impl Fn(ScaledOptimizer<O>) -> ScaledOptimizer<O>,
) {
    let device = Device::default().autodiff();
    let net = Net::new(&device);
    let parts = || {
        let amp = MixedPrecision::f16().with_scaler(config()).unwrap();
        let net = net.clone().apply_reparameterization(amp.clone());
        let optim = with(ScaledOptimizer::new(optim(), &amp));
        (amp, net, optim)
    };
    let (amp, mut eager, mut by_one) = parts();
    let (other, captured, optim) = parts();
    let mut captured = CapturedStep::new(captured, optim, |net: &Net, batch: Batch| {
        loss(&other, net, batch)
    })
    .unwrap();
    for step in 0..steps {
        let lr = 1e-3 / (1.0 + step as f64 / 500.0);
        let rows = if step % 5 == 4 { 3 } else { 4 };
        let batch = || batch(step, event(step), rows, &device);
        let expected = loss(&amp, &eager, batch());
        let grads = GradientsParams::from_grads(expected.clone().backward(), &eager);
        eager = by_one.step(lr, eager, grads);
        let found = captured.step(lr, batch()).unwrap();
        if step % 20 == 0 || step < 8 {
            let bits = |loss: Tensor<1>| loss.into_scalar::<f32>().to_bits();
            assert_eq!(bits(found), bits(expected.inner()), "step {step}");
            assert_eq!(captured.model().values(), eager.values(), "step {step}");
        }
        if step % 100 == 45 {
            let bytes = captured.to_record().into_bytes().unwrap();
            assert!(
                bytes == by_one.to_record().into_bytes().unwrap(),
                "step {step}"
            );
        }
    }
    assert_eq!(captured.shapes(), if has_graphs() { 2 } else { 0 });
    let (net, mut optim) = captured.into_parts();
    optim.synchronize().unwrap();
    by_one.synchronize().unwrap();
    assert_eq!(net.values(), eager.values());
    assert_eq!(optim.scaler().counters(), by_one.scaler().counters());
    assert_eq!(optim.scaler().schedule(), by_one.scaler().schedule());
    assert!(optim.scaler().counters().skipped() > 0);
    let bytes = |optim: &mut ScaledOptimizer<O>| optim.to_record().into_bytes().unwrap();
    assert!(bytes(&mut optim) == bytes(&mut by_one));
}

#[test]
fn the_same_bits() {
    assert_same(|| FusedAdam::new(AdamConfig::new()).unwrap(), 300);
}

#[test]
fn clipped() {
    let steps = if is_flex() { 200 } else { 40 };
    let adam = || FusedAdam::new(AdamConfig::new()).unwrap();
    assert_same_with(adam, steps, |optim| {
        let weights = ParamGroup::from_predicate("output");
        let optim = optim.with_clipping(GradientClip::GlobalNorm(0.1)).unwrap();
        let limited = optim.with_group_clipping(weights, GradientClip::Value(0.02));
        limited.unwrap()
    });
}

#[test]
fn whatever_the_rule() {
    let steps = if is_flex() { 200 } else { 60 };
    let adam_w = || FusedAdamW::new(AdamWConfig::new().with_amsgrad(true)).unwrap();
    assert_same(adam_w, steps);
    let momentum = MomentumConfig::new().with_nesterov(true);
    assert_same(
        || FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum.clone()))).unwrap(),
        steps,
    );
}

/// A network with embeddings, attention and tied weights; its batches are integers.
#[derive(Module, Debug)]
struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: TransformerEncoder,
}

impl Gpt {
    fn loss(&self, amp: &MixedPrecision, tokens: Tensor<2, Int>) -> Tensor<1> {
        let [windows, length] = tokens.dims();
        let device = tokens.device();
        let next = tokens.clone().roll_dim(-1, 1).flatten::<1>(0, 1);
        let logits = amp.autocast(tokens, |tokens| {
            let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
            let x = self.token.forward(tokens) + self.position.forward(places);
            let mask = generate_autoregressive_mask(windows, length, &device);
            let x = TransformerEncoderInput::new(x).mask_attn(mask);
            let x = self.blocks.forward(x).flatten::<2>(0, 1);
            x.matmul(self.token.weight.val().transpose())
        });
        let loss = CrossEntropyLossConfig::new().init(&device);
        loss.forward(logits, next)
    }
}

#[test]
fn a_gpt() {
    let device = Device::default().autodiff();
    let blocks = TransformerEncoderConfig::new(16, 32, 2, 1).with_dropout(0.0);
    let gpt = Gpt {
        token: EmbeddingConfig::new(20, 16).init(&device),
        position: EmbeddingConfig::new(8, 16).init(&device),
        blocks: blocks.init(&device),
    };
    let parts = || {
        let amp = MixedPrecision::f16();
        let gpt = gpt.clone().apply_reparameterization(amp.clone());
        let optim = fused(&amp);
        (amp, gpt, optim)
    };
    let batch = |step: i64| {
        let tokens = Tensor::<1, Int>::arange(step..step + 24, &device).remainder_scalar(20);
        tokens.reshape([3, 8])
    };
    let (amp, mut eager, mut by_one) = parts();
    let (other, captured, optim) = parts();
    let of = |gpt: &Gpt, tokens| gpt.loss(&other, tokens);
    let mut captured = CapturedStep::new(captured, optim, of).unwrap();
    for step in 0..20 {
        let expected = eager.loss(&amp, batch(step));
        let grads = GradientsParams::from_grads(expected.clone().backward(), &eager);
        eager = by_one.step(1e-2, eager, grads);
        let found = captured.step(1e-2, batch(step)).unwrap();
        assert_eq!(
            found.into_data(),
            expected.inner().into_data(),
            "step {step}"
        );
    }
    let (found, _) = captured.into_parts();
    let values = |gpt: Gpt| gpt.into_record().into_bytes().unwrap();
    assert!(values(found) == values(eager));
}

/// Takes what a closure needs, and says why it cannot be captured; nothing if it can.
fn refusal<B: CaptureInput, M: Module, O: ModuleOptim>(
    net: M,
    optim: ScaledOptimizer<O>,
    batch: B,
    loss: impl FnMut(&M, B) -> Tensor<1>,
) -> Option<String> {
    let mut step = match CapturedStep::new(net, optim, loss) {
        Ok(step) => step,
        Err(error) => return Some(error.to_string()),
    };
    step.step(1e-3, batch).err().map(|error| error.to_string())
}

fn fused(amp: &MixedPrecision) -> ScaledOptimizer<FusedAdam> {
    ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()).unwrap(), amp)
}

#[test]
fn optimizers_that_wait_are_refused() {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::f16();
    let net = || Net::new(&device).apply_reparameterization(amp.clone());
    let refused = |error: Option<String>, with: &str| {
        let error = error.unwrap();
        assert!(error.contains(with), "{error}");
    };
    let plain = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let here = || batch(0, Event::Nothing, 4, &device);
    let of = |net: &Net, batch| loss(&amp, net, batch);
    refused(refusal(net(), plain, here(), of), "not a fused one");
    let clipped = fused(&amp).with_accumulation(AccumulationConfig::new(2));
    refused(refusal(net(), clipped.unwrap(), here(), of), "accumulates");
}

#[test]
fn what_a_replay_would_repeat_is_refused() {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::f16();
    let net = || Net::new(&device).apply_reparameterization(amp.clone());
    let here = || batch(0, Event::Nothing, 4, &device);
    let refused = |error: Option<String>, with: &str| match error {
        Some(error) => assert!(error.contains(with), "{error}"),
        None => assert!(!has_graphs(), "{with}"),
    };

    let reads = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        let value = loss.clone().into_scalar::<f32>();
        if value > 1e9 { loss * 0.5 } else { loss }
    };
    refused(refusal(net(), fused(&amp), here(), reads), "reads a tensor");

    let sends = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        let factor = Tensor::<1>::from_floats([0.5], &loss.device());
        loss * factor
    };
    refused(
        refusal(net(), fused(&amp), here(), sends),
        "values of the host",
    );

    #[derive(Module, Debug)]
    struct Dropped {
        net: Net,
        dropout: Dropout,
    }
    let model = Dropped {
        net: net(),
        dropout: DropoutConfig::new(0.5).init(),
    };
    let draws = |model: &Dropped, (x, factor): Batch| {
        loss(&amp, &model.net, (model.dropout.forward(x), factor))
    };
    let error = refusal(model, fused(&amp), here(), draws);
    refused(error, "draws random numbers (`dropout`)");

    let mut kept = Vec::new();
    let keeps = |net: &Net, (x, factor): Batch| {
        kept.push(x.clone());
        loss(&amp, net, (x, factor))
    };
    refused(
        refusal(net(), fused(&amp), here(), keeps),
        "keeps a tensor of the batch",
    );
}

/// Whether the default device records steps.
fn has_graphs() -> bool {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::f16();
    let net = Net::new(&device).apply_reparameterization(amp.clone());
    let of = |net: &Net, batch| loss(&amp, net, batch);
    let mut step = CapturedStep::new(net, fused(&amp), of).unwrap();
    step.step(1e-3, batch(0, Event::Nothing, 4, &device))
        .unwrap();
    step.shapes() > 0
}

/// After a refusal, model and optimizer are as they were, and train on.
#[test]
fn a_refusal_changes_nothing() {
    let device = Device::default().autodiff();
    let amp = MixedPrecision::f16();
    let net = Net::new(&device).apply_reparameterization(amp.clone());
    let before = net.values();
    let refuse = Cell::new(has_graphs());
    let of = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        if refuse.get() {
            let _ = loss.clone().into_scalar::<f32>();
        }
        loss
    };
    let mut step = CapturedStep::new(net.clone(), fused(&amp), of).unwrap();
    let here = || batch(1, Event::Nothing, 4, &device);
    if refuse.get() {
        let refused = step.step(1e-3, here());
        assert!(matches!(refused, Err(AmpError::CannotCapture { .. })));
        assert_eq!(step.model().values(), before);
    }
    refuse.set(false);
    for _ in 0..3 {
        step.step(1e-3, here()).unwrap();
    }
    let before = step.model().values();
    let error = step.step(f64::NAN, here()).unwrap_err();
    assert!(
        matches!(error, AmpError::InvalidValue { field: "lr", .. }),
        "{error}"
    );
    assert_eq!(step.model().values(), before);
    step.step(1e-3, here()).unwrap();
    let (trained, _) = step.into_parts();

    let amp = MixedPrecision::f16();
    let net = Net::new(&device).apply_reparameterization(amp.clone());
    let mut optim = fused(&amp);
    let expected = (0..4).fold(net, |net, _| {
        let grads = GradientsParams::from_grads(loss(&amp, &net, here()).backward(), &net);
        optim.step(1e-3, net, grads)
    });
    assert_eq!(trained.values(), expected.values());
}
