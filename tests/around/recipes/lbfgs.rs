//! Burn's L-BFGS, whose closure repeats an evaluation until the scaler finds its gradients finite: the recipe of the book.

use burn::optim::{LBFGSConfig, LineSearchFn};

use crate::support::*;

#[derive(Debug, Default)]
struct Fitted {
    /// Of each step.
    losses: Vec<f64>,
    /// Evaluations that overflowed, and those whose loss was infinite.
    repeated: usize,
    infinite: usize,
}

/// Fits a line.
fn fit(amp: &MixedPrecision, rate: f64) -> Fitted {
    let x = random(1, [32, 4], &flex());
    let y = x.clone().sum_dim(1) * 0.5 + 1.0;
    let mut model: Linear = fill(LinearConfig::new(4, 1).init(&flex()), 1, 0.5);
    model = amp.attach(model);
    let mut scaler = GradScaler::from(amp);
    let mut optim = LBFGSConfig::new()
        .with_max_iter(4)
        .with_line_search_fn(LineSearchFn::StrongWolfe)
        .init();
    let mut fitted = Fitted::default();
    let mut evaluate = |model: Linear| loop {
        let output = amp.autocast(x.clone(), |x| model.forward(x));
        let loss = (output - y.clone()).square().mean();
        let value = loss.clone().into_scalar::<f64>();
        let grads = scaler.unscale(scaler.backward(loss, &model), &model);
        let grads = grads.unwrap();
        scaler.observe(&grads).unwrap();
        scaler.update().unwrap();
        fitted.infinite += usize::from(!value.is_finite());
        if !grads.status().has_overflow() || !value.is_finite() {
            break (value.min(f64::MAX), grads.into_params());
        }
        fitted.repeated += 1;
    };
    let mut losses = [0.0; 4];
    for last in &mut losses {
        (model, *last) = optim.step(rate, model, &mut evaluate);
    }
    fitted.losses = losses.to_vec();
    fitted
}

#[test]
fn an_evaluation_is_repeated_until_it_is_finite() {
    let in_f32 = fit(&MixedPrecision::f32(), 1.0);
    let amp = f16_under(at_scale(2f64.powi(30)));
    let in_half = fit(&amp, 1.0);
    assert_eq!((in_f32.repeated, amp.loss_scale()), (0, 16384.0));
    assert_eq!((in_half.repeated, in_half.infinite), (16, 0));
    for fitted in [in_f32, in_half] {
        assert!(fitted.losses[3] < 1e-5, "{fitted:?}");
    }
}

/// There the loss is infinite, and the line search goes back.
#[test]
fn a_first_step_that_is_far_too_long_is_taken_back() {
    let fitted = fit(&f16_under(at_scale(1.0)), 2e5);
    assert!(fitted.infinite > 0 && fitted.losses[3] < 1e-4, "{fitted:?}");
}
