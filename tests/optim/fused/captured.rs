//! Steps that a device captures once and replays.

mod leaves;

use burn::nn::{Dropout, Embedding};
use burn::{nn::loss::CrossEntropyLossConfig, nn::transformer::TransformerEncoder};
use std::cell::Cell;

use super::adam;
use super::matrix::{check, same_bits};
use super::run::{Batch, Run, captured, default_run, has_graphs, loss, of_rows, train};
use crate::support::*;

#[test]
fn plain_and_clipped() {
    use GradientClip::{GlobalNorm, Norm, Value};
    check(adam(), &[], 100);
    let clips = [
        (None, GlobalNorm(0.02)),
        (Some("head"), GlobalNorm(0.05)),
        (Some("hidden.bias"), Norm(0.001)),
        (Some("head.bias"), Value(0.004)),
    ];
    let nesterov = Some(MomentumConfig::new().with_nesterov(true));
    let nesterov = SgdConfig::new().with_momentum(nesterov);
    check(FusedSgd::new(nesterov), &clips, 40);
}

/// A network with embeddings, attention and tied weights; its batches are integers.
#[test]
fn a_gpt() {
    type Gpt = (Embedding, TransformerEncoder);

    let device = device();
    let blocks = TransformerEncoderConfig::new(16, 32, 2, 1).with_dropout(0.0);
    let token = EmbeddingConfig::new(20, 16).init(&device);
    let gpt: Gpt = (token, blocks.init(&device));
    let batch = |step: usize| {
        let tokens = step as i64..step as i64 + 24;
        let tokens = Tensor::<1, Int>::arange(tokens, &device).remainder_scalar(20);
        tokens.reshape([3, 8])
    };
    let loss = |(token, blocks): &Gpt, amp: &MixedPrecision, tokens: Tensor<2, Int>| {
        let device = tokens.device();
        let next = tokens.clone().roll_dim(-1, 1).flatten::<1>(0, 1);
        let logits = amp.autocast(tokens, |tokens| {
            let mask = generate_autoregressive_mask(3, 8, &device);
            let x = TransformerEncoderInput::new(token.forward(tokens)).mask_attn(mask);
            let x = blocks.forward(x).flatten::<2>(0, 1);
            x.matmul(token.weight.val().transpose())
        });
        let loss = CrossEntropyLossConfig::new().init(&device);
        loss.forward(logits, next)
    };
    same_bits((adam(), &[]), &gpt, 20, batch, loss);
}

/// A copy of a batch computes its activations again as the batch does.
#[test]
fn a_step_with_gradient_checkpointing() {
    let device = device().gradient_checkpointing();
    let net: Linear = LinearConfig::new(4, 2).init(&device);
    let batch = |step| Tensor::<2>::full([3, 4], 0.25 * step as f64, &device);
    same_bits((adam(), &[]), &net, 4, batch, |net, amp, x: Tensor<2>| {
        amp.autocast(x, |x| net.forward(x).tanh()).square().mean()
    });
}

/// Why a closure cannot be captured; nothing if it can.
fn refusal<M: Module, O: ModuleOptim>(
    net: &M,
    optim: ScaledOptimizer<O>,
    loss: impl FnMut(&M, Batch) -> Tensor<1>,
) -> Option<AmpError> {
    match CapturedStep::new(net.clone(), optim, loss) {
        Ok(mut step) => step.step(1e-3, of_rows(4)).err(),
        Err(error) => Some(error),
    }
}

/// What else is refused is in the oracle's table.
#[test]
fn optimizers_that_wait_are_refused() {
    let Run { amp, model, .. } = default_run();
    let of = |net: &Net, batch| loss(net, &amp, batch);
    let plain = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    says(&refusal(&model, plain, of).unwrap(), ["not a fused one"]);
    // Without a loss scale nothing is skipped; one that stays will do, and bf16 has one.
    let amp = MixedPrecision::f32();
    let on = |amp: &MixedPrecision| ScaledOptimizer::new(adam(), amp);
    says(&refusal(&model, on(&amp), of).unwrap(), ["no loss scale"]);
    let still = amp.with_scaler(at_scale(1.0).with_dynamic(false)).unwrap();
    for amp in [still, MixedPrecision::bf16()] {
        assert_eq!(refusal(&model, on(&amp), of), None);
    }
}

#[test]
fn what_a_replay_would_repeat_is_refused() {
    let Run { amp, model, .. } = default_run();
    let of = |net: &Net, batch| loss(net, &amp, batch);
    let reads = |net: &Net, batch| {
        let loss = of(net, batch);
        let value = loss.clone().into_scalar::<f32>();
        if value > 1e9 { loss * 0.5 } else { loss }
    };
    let sends = |net: &Net, batch| {
        let factor = Tensor::<1>::from_floats([0.5], &device());
        of(net, batch) * factor
    };
    let mut kept = Vec::new();
    let keeps = |net: &Net, batch: Batch| {
        kept.push(batch.0.clone());
        of(net, batch)
    };
    let dropped = (model.clone(), DropoutConfig::new(0.5).init());
    let draws =
        |(net, dropout): &(Net, Dropout), (x, factor): Batch| of(net, (dropout.forward(x), factor));
    let optim = || ScaledOptimizer::new(adam(), &amp);
    let mut drawn = None;
    let lines = logs("draw random numbers", || {
        drawn = refusal(&dropped, optim(), draws)
    });
    for (error, with) in [
        (refusal(&model, optim(), reads), "reads a tensor"),
        (refusal(&model, optim(), sends), "values of the host"),
        (refusal(&model, optim(), keeps), "keeps a tensor of"),
        (drawn, "random numbers (`1`)"),
    ] {
        match error {
            Some(error) => says(&error, [with]),
            None => assert!(!has_graphs(), "{with}"),
        }
    }
    // It trains there: a device that records would refuse it, so its layer is named.
    if !has_graphs() {
        says(only(&lines), ["WARN", "if `1` draw random numbers"]);
    }
}

/// Each of them would be recorded anew when it comes back, which costs as much as six steps.
#[test]
fn more_shapes_in_turn_than_are_kept_end_the_recording() {
    let (mut step, mut expected) = (captured(default_run()), default_run());
    let lines = logs("shapes come in turn", || {
        for rows in [1, 2, 3, 4, 5].repeat(4) {
            step.step(1e-3, of_rows(rows)).unwrap();
            train(&mut expected, 1e-3, of_rows(rows));
        }
    });
    assert_eq!(step.shapes(), 0);
    assert_eq!(lines.len(), usize::from(has_graphs()), "{lines:?}");
    assert_eq!(parameters(&step.model()), parameters(&expected.model));
}

/// After a refusal, and where the closure panics, model and optimizer are as they were, and train on.
#[test]
fn a_refusal_changes_nothing() {
    let Run { amp, model, optim } = default_run();
    let before = parameters(&model);
    let (refuse, panics) = (Cell::new(has_graphs()), Cell::new(true));
    let of = |net: &Net, batch: Batch| {
        let loss = loss(net, &amp, batch);
        assert!(!panics.get());
        if refuse.get() {
            let _ = loss.clone().into_scalar::<f32>();
        }
        loss
    };
    let mut step = CapturedStep::new(model, optim, of).unwrap();
    quietly(|| step.step(1e-3, of_rows(4))).unwrap_err();
    panics.set(false);
    assert_eq!(parameters(&step.model()), before);
    if refuse.get() {
        let refused = step.step(1e-3, of_rows(4)).unwrap_err();
        is_error(&refused, "CannotCapture", []);
        assert_eq!(parameters(&step.model()), before);
    }
    refuse.set(false);
    let mut expected = default_run();
    for number in 0..4 {
        if number == 3 {
            let error = step.step(f64::NAN, of_rows(4)).unwrap_err();
            is_error(&error, "InvalidValue", ["`lr`"]);
        }
        step.step(1e-3, of_rows(4)).unwrap();
        train(&mut expected, 1e-3, of_rows(4));
    }
    assert_eq!(parameters(&step.model()), parameters(&expected.model));
}
