//! Steps that a device captures once and replays. That they are those that are made one by one, bit for bit, is in `matrix`.

mod leaves;

use burn::nn::{Dropout, Embedding};
use burn::{nn::loss::CrossEntropyLossConfig, nn::transformer::TransformerEncoder};
use std::cell::Cell;

use super::run::{Batch, Event, Run, adam, batch, captured, loss, train};
use crate::support::*;

/// A network with embeddings, attention and tied weights; its batches are integers.
type Gpt = (Embedding, TransformerEncoder);

fn loss_of((token, blocks): &Gpt, amp: &MixedPrecision, tokens: Tensor<2, Int>) -> Tensor<1> {
    let ([windows, length], device) = (tokens.dims(), tokens.device());
    let next = tokens.clone().roll_dim(-1, 1).flatten::<1>(0, 1);
    let logits = amp.autocast(tokens, |tokens| {
        let mask = generate_autoregressive_mask(windows, length, &device);
        let x = TransformerEncoderInput::new(token.forward(tokens)).mask_attn(mask);
        let x = blocks.forward(x).flatten::<2>(0, 1);
        x.matmul(token.weight.val().transpose())
    });
    let loss = CrossEntropyLossConfig::new().init(&device);
    loss.forward(logits, next)
}

#[test]
fn a_gpt() {
    let device = device();
    let blocks = TransformerEncoderConfig::new(16, 32, 2, 1).with_dropout(0.0);
    let token = EmbeddingConfig::new(20, 16).init(&device);
    let gpt: Gpt = (token, blocks.init(&device));
    let play = || burn_amp_tests::Player::with(adam(), gpt.clone(), &MixedPrecision::f16());
    let (mut eager, other) = (play(), play());
    let batch = |step: i64| {
        let tokens = Tensor::<1, Int>::arange(step..step + 24, &device).remainder_scalar(20);
        tokens.reshape([3, 8])
    };
    let of = |gpt: &Gpt, tokens| loss_of(gpt, &other.amp, tokens);
    let mut recorded = CapturedStep::new(other.model, other.optim, of).unwrap();
    for step in 0..20 {
        let expected = loss_of(&eager.model, &eager.amp, batch(step));
        eager.train(1e-2, expected.clone());
        let found = recorded.step(1e-2, batch(step)).unwrap().into_data();
        assert_eq!(found, expected.inner().into_data(), "step {step}");
    }
    assert!(parameters(&recorded.into_parts().0) == parameters(&eager.model));
}

/// A copy of a batch computes its activations again as the batch does.
#[test]
fn a_step_with_gradient_checkpointing() {
    let device = device().gradient_checkpointing();
    let net = LinearConfig::new(4, 2).init(&device);
    let play = || burn_amp_tests::Player::with(adam(), net.clone(), &MixedPrecision::f16());
    let (mut eager, other) = (play(), play());
    let loss_of = |net: &Linear, amp: &MixedPrecision, x: Tensor<2>| {
        amp.autocast(x, |x| net.forward(x).tanh()).square().mean()
    };
    let of = |net: &Linear, x: Tensor<2>| loss_of(net, &other.amp, x);
    let mut recorded = CapturedStep::new(other.model, other.optim, of).unwrap();
    for step in 0..4 {
        let batch = || Tensor::<2>::full([3, 4], 0.25 * f64::from(step), &device);
        let expected = loss_of(&eager.model, &eager.amp, batch());
        eager.train(1e-2, expected.clone());
        let found = recorded.step(1e-2, batch()).unwrap().into_data();
        assert_eq!(found, expected.inner().into_data(), "step {step}");
    }
}

/// With a layer that draws random numbers.
type Dropped = (Net, Dropout);

fn dropped(net: Net) -> Dropped {
    (net, DropoutConfig::new(0.5).init())
}

/// Why a closure cannot be captured; nothing if it can.
fn refusal<M: Module, O: ModuleOptim>(
    net: &M,
    optim: ScaledOptimizer<O>,
    loss: impl FnMut(&M, Batch) -> Tensor<1>,
) -> Option<AmpError> {
    match CapturedStep::new(net.clone(), optim, loss) {
        Ok(mut step) => step.step(1e-3, here()).err(),
        Err(error) => Some(error),
    }
}

fn begun() -> Run<FusedAdam> {
    super::run::begun(adam(), GradScalerConfig::new())
}

fn here() -> Batch {
    batch(0, Event::Nothing, 4)
}

#[test]
fn optimizers_that_wait_are_refused() {
    let Run { amp, model, optim } = begun();
    let of = |net: &Net, batch| loss(&amp, net, batch);
    let plain = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let windowed = optim.with_accumulation(AccumulationConfig::new(2));
    says(&refusal(&model, plain, of).unwrap(), ["not a fused one"]);
    says(&refusal(&model, windowed, of).unwrap(), ["accumulates"]);
    // Without a loss scale nothing is skipped; one that stays will do, and bf16 has one.
    let still = GradScalerConfig::new().with_init_scale(1.0);
    let amp = MixedPrecision::f32();
    let on = |amp: &MixedPrecision| ScaledOptimizer::new(adam(), amp);
    says(&refusal(&model, on(&amp), of).unwrap(), ["no loss scale"]);
    let still = amp.with_scaler(still.with_dynamic(false)).unwrap();
    for amp in [still, MixedPrecision::bf16()] {
        assert_eq!(refusal(&model, on(&amp), of), None);
    }
}

#[test]
fn what_a_replay_would_repeat_is_refused() {
    let Run { amp, model, .. } = begun();
    let reads = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        let value = loss.clone().into_scalar::<f32>();
        if value > 1e9 { loss * 0.5 } else { loss }
    };
    let sends = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        let factor = Tensor::<1>::from_floats([0.5], &loss.device());
        loss * factor
    };
    let mut kept = Vec::new();
    let keeps = |net: &Net, (x, factor): Batch| {
        kept.push(x.clone());
        loss(&amp, net, (x, factor))
    };
    let dropped = dropped(model.clone());
    let draws = |(net, dropout): &Dropped, (x, factor): Batch| {
        loss(&amp, net, (dropout.forward(x), factor))
    };
    let optim = || ScaledOptimizer::new(adam(), &amp);
    for (error, with) in [
        (refusal(&model, optim(), reads), "reads a tensor"),
        (refusal(&model, optim(), sends), "values of the host"),
        (refusal(&model, optim(), keeps), "keeps a tensor of"),
        (refusal(&dropped, optim(), draws), "random numbers (`1`)"),
    ] {
        match error {
            Some(error) => says(&error, [with]),
            None => assert!(!has_graphs(), "{with}"),
        }
    }
}

/// It trains there: a device that records would refuse it, so its layer is named.
#[test]
fn where_nothing_is_recorded_dropout_is_warned_of() {
    let lines = logs("draw random numbers", || {
        let model = dropped(Net::dense(&flex()));
        let of = |(net, _): &Dropped, x: Tensor<2>| net.forward(x).mean();
        let optim = ScaledOptimizer::new(adam(), &MixedPrecision::f16());
        CapturedStep::new(model, optim, of).unwrap();
    });
    says(only(&lines), ["WARN", "if `1` draw random numbers"]);
}

/// Whether the default device records steps.
pub fn has_graphs() -> bool {
    let mut step = captured(begun());
    step.step(1e-3, here()).unwrap();
    step.shapes() > 0
}

/// Each of them would be recorded anew when it comes back, which costs as much as six steps.
#[test]
fn more_shapes_in_turn_than_are_kept_end_the_recording() {
    let (mut step, mut expected) = (captured(begun()), begun());
    let lines = logs("shapes come in turn", || {
        for rows in [1, 2, 3, 4, 5].repeat(4) {
            step.step(1e-3, batch(0, Event::Nothing, rows)).unwrap();
            train(&mut expected, 1e-3, batch(0, Event::Nothing, rows));
        }
    });
    assert_eq!(step.shapes(), 0);
    assert_eq!(lines.len(), usize::from(has_graphs()), "{lines:?}");
    assert_eq!(parameters(&step.model()), parameters(&expected.model));
}

/// After a refusal, and where the closure panics, model and optimizer are as they were, and train on.
#[test]
fn a_refusal_changes_nothing() {
    let Run { amp, model, optim } = begun();
    let before = parameters(&model);
    let (refuse, panics) = (Cell::new(has_graphs()), Cell::new(true));
    let of = |net: &Net, batch: Batch| {
        let loss = loss(&amp, net, batch);
        assert!(!panics.get());
        if refuse.get() {
            let _ = loss.clone().into_scalar::<f32>();
        }
        loss
    };
    let mut step = CapturedStep::new(model, optim, of).unwrap();
    quietly(|| step.step(1e-3, here())).unwrap_err();
    panics.set(false);
    assert_eq!(parameters(&step.model()), before);
    if refuse.get() {
        let refused = step.step(1e-3, here()).unwrap_err();
        is_error(&refused, "CannotCapture", []);
        assert_eq!(parameters(&step.model()), before);
    }
    refuse.set(false);
    for _ in 0..3 {
        step.step(1e-3, here()).unwrap();
    }
    let before = parameters(&step.model());
    let error = step.step(f64::NAN, here()).unwrap_err();
    is_error(&error, "InvalidValue", ["`lr`"]);
    assert_eq!(parameters(&step.model()), before);
    step.step(1e-3, here()).unwrap();

    let mut expected = begun();
    for _ in 0..4 {
        train(&mut expected, 1e-3, here());
    }
    assert_eq!(parameters(&step.model()), parameters(&expected.model));
}
