//! Regions with a factor of their own, which a program has fixed: what it multiplies, and that nobody sees it outside.
//!
//! All values are powers of two, so that gradients are exact, unless half precision cannot hold them.

use crate::support::*;

fn attached(amp: &MixedPrecision) -> Chain {
    Chain::new().attach(amp, amp)
}

fn input() -> Tensor<1> {
    vector(&[1.0, 2.0])
}

/// The factor that a value has inside: that at which it becomes infinite.
fn exponent(way: &dyn Fn(Tensor<1>) -> Tensor<1>) -> i32 {
    let overflows = |exponent: i32| {
        let input = vector(&[1.0]).require_grad();
        let grads = (way(input.clone()).sum() * two(exponent)).backward();
        !values(input.grad(&grads).unwrap())[0].is_finite()
    };
    16 - (-60..60).find(|exponent| overflows(*exponent)).unwrap()
}

#[test]
fn factors_are_multiplied() {
    let amp = f16(two(5));
    let four = |x: Tensor<1>| by(4, x, |x| x);
    let scope_in = |k, x: Tensor<1>| by(k, x, |x| autocast(x, |x| x));
    let ways: [(i32, &dyn Fn(Tensor<1>) -> Tensor<1>); 7] = [
        (5, &|x| amp.autocast(x, |x| x)),
        (9, &|x| amp.autocast(x, four)),
        (9, &|x| by(4, x, |x| amp.autocast(x, |x| x))),
        (12, &|x| amp.autocast(x, |x| by(3, x, four))),
        // A scope in a region, around which another region lies.
        (12, &|x| by(4, x, |x| amp.autocast(x, |x| scope_in(3, x)))),
        // f32 needs no factor, but what is in half precision in it has that.
        (5, &|x| amp.autocast(x, |x| in_f32(x, four))),
        (9, &|x| amp.autocast(x, |x| in_f32(x, |x| scope_in(4, x)))),
    ];
    for (index, (expected, way)) in ways.into_iter().enumerate() {
        assert_eq!(exponent(way), expected, "way {index}");
    }
    // Without half precision there is nothing to multiply.
    let plain = MixedPrecision::f32();
    let input = vector(&[1.0]).require_grad();
    let output = plain.autocast(input.clone(), |x| by(100, x, |x| x));
    let grads = (output.sum() * two(100)).backward();
    assert_eq!(values(input.grad(&grads).unwrap()), [two(100) as f32]);
}

#[test]
fn a_region_in_f32_stays_f32_and_a_panic_leaves_the_region() {
    let amp = f16(two(9));
    let chain = attached(&amp);
    let fails = |x| by(3, x, |_| -> Tensor<1> { panic!("here") });
    panic_message(|| amp.autocast(input(), fails));
    assert_eq!(chain.inner.factor.val().dtype(), DType::F32);
    let output = by(3, input(), |x| chain.inner.forward(x));
    assert_eq!(output.dtype(), DType::F32);
}

/// Whatever its factor, and in both directions. A region without a leak passes, also where its gradients are lost without the factor, and
/// where it is given what it uses, or takes in what is captured in f32.
#[test]
fn a_leak_over_the_border_of_a_region_is_found_at_any_factor() {
    let amp = f16(two(9));
    let chain = attached(&amp);
    let side = input().require_grad();
    let check = |k: i32, weight: f64, leak: &str| {
        let forward = |m: &Chain, x: Tensor<1>| {
            let first = m.first.forward(x);
            let (mut carried, captured) = (None, first.clone());
            let hidden = by(k, (first.clone(), first), |(x, given)| {
                let hidden = m.inner.forward(x);
                carried = Some(hidden.clone());
                match leak {
                    "given" => hidden.tanh() * given,
                    "cast" => hidden.tanh() * amp.cast(side.clone()),
                    "in" => hidden.tanh() * captured,
                    _ => hidden.tanh() * weight,
                }
            });
            let output = m.last.forward(hidden);
            match leak {
                "out" => output + carried.unwrap(),
                _ => output,
            }
        };
        let output = |m: &Chain| amp.autocast(input(), |x| forward(m, x));
        amp.check(&chain, |m| output(m).sum() * two(-12))
    };
    for k in [-12, -8, -5, -4, -3, 1, 2, 3, 4, 5, 8, 12] {
        for leak in ["none", "given", "cast"] {
            assert!(check(k, 1.0, leak).is_ok(), "{leak} at {k}");
        }
        for leak in ["out", "in"] {
            let found = check(k, 1.0, leak);
            let Err(AmpError::BorderLeak { parameter, .. }) = found else {
                panic!("{leak} at {k}: {found:?}");
            };
            assert!(k != 3 || parameter == "first.factor", "{leak}: {parameter}");
        }
    }
    for weight in [-16, -18, -20, -22] {
        let found = check(14, two(weight), "none");
        assert!(found.is_ok(), "{weight}: {found:?}");
    }
}

/// In a scope, and outside of one that opens in the region. The largest ones are taken.
#[test]
fn an_exponent_out_of_range_is_refused_by_the_scope() {
    let amp = f16(two(9));
    let inside = |k| amp.try_autocast(input(), |x| by(k, x, |x| x));
    let outside = |k| by(k, input(), |x| amp.try_autocast(x, |x| x));
    for (k, refused) in [(126, false), (-126, false), (127, true), (i32::MIN, true)] {
        let expected = format!("`power_of_two` is {k}, but must be between -126 and 126");
        for error in [inside(k).err(), outside(k).err()] {
            let message = error.map(|error| error.to_string());
            assert_eq!(message, refused.then(|| expected.clone()));
        }
    }
}

#[test]
fn settings_outside_their_range() {
    let (config, region) = (GradScalerConfig::new(), Rescale::dynamic("region"));
    let refused = [
        AdaLoss::new(0.0, 16.0).err(),
        AdaLoss::new(0.1, f64::INFINITY).err(),
        region.with_scaler(config.with_growth_factor(1.0)).err(),
        Rescale::power_of_two(3).with_scaler(config).err(),
    ];
    let starts = [
        "`underflow_share` is 0, but must be above 0 and at most 0.5",
        "`total_limit` is inf, but must be finite and at least 1",
        "`growth_factor` is 1",
        "`with_scaler` is a setting of the factor 2^3, but must be",
    ];
    for (error, start) in refused.into_iter().zip(starts) {
        let message = error.unwrap().to_string();
        assert!(message.starts_with(start), "{message}");
    }
}
