//! Parts with a factor of their own, which a program has fixed: what it multiplies, and that nobody sees it outside.
//!
//! All values are powers of two, so that gradients are exact, unless half precision cannot hold them.

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use burn_amp::{
    AmpError, GradScalerConfig, MixedPrecision, Rescale, Scope, autocast, in_f32, rescaled,
};

use crate::support::{Gain, f16, gradient, halves, scaled, two, values, vector};

#[derive(Module, Debug)]
struct Chain {
    first: Gain,
    inner: Gain,
    last: Gain,
}

type Gradients = [Vec<f32>; 4];

impl Chain {
    fn new() -> Self {
        Self {
            first: Gain::new(&[2.0, -4.0]),
            inner: Gain::new(&[0.5, 8.0]),
            last: Gain::new(&[-1.0, 0.25]),
        }
    }

    fn attach(amp: &MixedPrecision) -> Self {
        Self::new().apply_reparameterization(amp.clone())
    }

    /// The gradients of a loss of `weight` times the sum of the outputs: of the input, and of the parts.
    fn gradients(&self, weight: f64, forward: impl Fn(Tensor<1>) -> Tensor<1>) -> Gradients {
        let input = vector(&[1.0, 2.0]).require_grad();
        let output = forward(input.clone());
        assert_eq!(output.dtype(), DType::F32);
        let grads = (output.sum() * weight).backward();
        let of_input = values(input.grad(&grads).unwrap());
        let grads = GradientsParams::from_grads(grads, self);
        let of = |gain: &Gain| gradient(&grads, gain.factor.id);
        [of_input, of(&self.first), of(&self.inner), of(&self.last)]
    }

    fn plain(weight: f64) -> Gradients {
        let chain = Self::new();
        chain.gradients(weight, |x| chain.parts(x, |x| chain.inner.forward(x)))
    }

    fn parts(&self, x: Tensor<1>, inner: impl Fn(Tensor<1>) -> Tensor<1>) -> Tensor<1> {
        self.last.forward(inner(self.first.forward(x)))
    }

    /// With a factor for the part between.
    fn rescaled(&self, amp: &MixedPrecision, k: i32, weight: f64) -> Gradients {
        let inner = |x: Tensor<1>| {
            let dtype = x.dtype();
            let output = rescaled(k, x, |x| {
                assert_eq!([x.dtype(), self.inner.factor.val().dtype()], [dtype; 2]);
                self.inner.forward(x)
            });
            assert_eq!(output.dtype(), dtype);
            output
        };
        self.gradients(weight, |x| amp.autocast(x, |x| self.parts(x, inner)))
    }
}

#[test]
fn the_factor_is_taken_back_on_the_way_out() {
    let expected = Chain::plain(two(-8));
    for dtype in halves() {
        for k in [-6, -1, 0, 1, 5, 8] {
            let amp = scaled(dtype, two(9));
            assert_eq!(Chain::attach(&amp).rescaled(&amp, k, two(-8)), expected);
        }
    }
}

/// What only the factor saves is saved in the part, and only there.
#[test]
fn gradients_are_larger_inside_alone() {
    let amp = f16(two(10));
    let chain = Chain::attach(&amp);
    // In the part, 2^-20 falls by 2^-20 before it comes to the parameter: 2^10 times that is below f16, and 2^12 times more is not.
    let dip = |x: Tensor<1>| chain.inner.forward(x) * two(-20);
    let inner = |k| {
        let forward = |x| amp.autocast(x, |x| chain.parts(x, |x| rescaled(k, x, dip)));
        chain.gradients(two(-20), forward)[2].clone()
    };
    let [dipped, saved] = [inner(0), inner(12)];
    assert_eq!(dipped, [0.0; 2]);
    let expected = Chain::plain(two(-40))[2].clone();
    assert_eq!(saved, expected);
    // Out of the part it is without the factor again, and below f16 there.
    let [input, first, ..] = chain.gradients(two(-20), |x| {
        amp.autocast(x, |x| chain.parts(x, |x| rescaled(12, x, dip)))
    });
    assert_eq!([input, first].concat(), [0.0; 4]);
}

/// At a factor too high it is infinite, in the part first.
#[test]
fn a_factor_that_is_too_high_overflows() {
    let amp = f16(two(8));
    let [.., inner, last] = Chain::attach(&amp).rescaled(&amp, 22, two(-4));
    assert_eq!(last, Chain::plain(two(-4))[3]);
    assert!(inner.iter().all(|value| value.is_infinite()), "{inner:?}");
}

#[test]
fn parts_in_parts_in_islands_and_in_scopes() {
    let expected = Chain::plain(two(-8));
    let amp = f16(two(9));
    let chain = Chain::attach(&amp);
    let inner = |x| chain.inner.forward(x);
    let ways: [&dyn Fn(Tensor<1>) -> Tensor<1>; 7] = [
        &|x| rescaled(3, x, |x| rescaled(2, x, inner)),
        &|x| rescaled(9, x, |x| rescaled(-12, x, inner)),
        &|x| rescaled(3, x, |x| in_f32(x, inner)),
        &|x| in_f32(x, |x| rescaled(3, x, inner)),
        &|x| in_f32(x, |x| rescaled(3, x, |x| amp.autocast(x, inner))),
        &|x| rescaled(3, x, |x| amp.autocast(x, inner)),
        &|x| {
            rescaled(3, x, |x| {
                in_f32(x, |x| autocast(x, |x| rescaled(1, x, inner)))
            })
        },
    ];
    for (index, way) in ways.into_iter().enumerate() {
        let found = chain.gradients(two(-8), |x| amp.autocast(x, |x| chain.parts(x, way)));
        assert_eq!(found, expected, "way {index}");
    }
    let around = chain.gradients(two(-8), |x| {
        rescaled(4, x, |x| amp.autocast(x, |x| chain.parts(x, inner)))
    });
    assert_eq!(around, expected);
}

/// The factor that a value of a part has: that at which it becomes infinite.
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
    assert_eq!(exponent(&|x| amp.autocast(x, |x| x)), 5);
    assert_eq!(exponent(&|x| amp.autocast(x, |x| rescaled(4, x, |x| x))), 9);
    assert_eq!(exponent(&|x| rescaled(4, x, |x| amp.autocast(x, |x| x))), 9);
    assert_eq!(
        exponent(&|x| amp.autocast(x, |x| rescaled(4, x, |x| rescaled(3, x, |x| x)))),
        12
    );
    // A scope in a part, around which another part lies.
    assert_eq!(
        exponent(&|x| rescaled(4, x, |x| amp
            .autocast(x, |x| rescaled(3, x, |x| autocast(x, |x| x))))),
        12
    );
    // f32 needs no factor, but what is in half precision in it has that.
    assert_eq!(
        exponent(&|x| amp.autocast(x, |x| in_f32(x, |x| rescaled(4, x, |x| x)))),
        5
    );
    assert_eq!(
        exponent(&|x| amp.autocast(x, |x| in_f32(x, |x| rescaled(4, x, |x| autocast(x, |x| x))))),
        9
    );
    // Without half precision there is nothing to multiply.
    let plain = MixedPrecision::f32();
    let input = vector(&[1.0]).require_grad();
    let output = plain.autocast(input.clone(), |x| rescaled(100, x, |x| x));
    let grads = (output.sum() * two(100)).backward();
    assert_eq!(values(input.grad(&grads).unwrap()), [two(100) as f32]);
}

#[test]
fn on_other_threads_by_scope() {
    let amp = f16(two(9));
    let chain = Chain::attach(&amp);
    let elsewhere = |x: Tensor<1>| {
        let scope = Scope::current();
        let work = || scope.enter(|| rescaled(2, x, |x| chain.inner.forward(x)));
        std::thread::scope(|threads| threads.spawn(work).join().unwrap())
    };
    let found = chain.gradients(two(-8), |x| {
        amp.autocast(x, |x| chain.parts(x, |x| rescaled(3, x, elsewhere)))
    });
    assert_eq!(found, Chain::plain(two(-8)));
}

#[test]
fn a_part_in_f32_stays_f32_and_a_panic_leaves_the_part() {
    let amp = f16(two(9));
    let chain = Chain::attach(&amp);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        amp.autocast(vector(&[1.0, 2.0]), |x| {
            rescaled(3, x, |_| -> Tensor<1> { panic!("here") })
        })
    }));
    assert!(result.is_err());
    assert_eq!(chain.inner.factor.val().dtype(), DType::F32);
    let output = rescaled(3, vector(&[1.0, 2.0]), |x| chain.inner.forward(x));
    assert_eq!(output.dtype(), DType::F32);
}

/// What is captured in f32 is taken in as by a scope; what is f16 keeps the factor, and a dry run finds it.
#[test]
fn captured_tensors() {
    let amp = f16(two(9));
    let chain = Chain::attach(&amp);
    let side = vector(&[4.0, 0.5]).require_grad();
    let captured =
        |x: Tensor<1>| rescaled(3, x, |x| chain.inner.forward(x) * amp.cast(side.clone()));
    let loss = |m: &Chain| {
        let forward = |x| m.parts(x, captured);
        amp.autocast(vector(&[1.0, 2.0]), forward).sum() * two(-8)
    };
    amp.check(&chain, loss).unwrap();
    let grads = loss(&chain).backward();
    let expected = {
        let plain = Chain::new();
        let side = vector(&[4.0, 0.5]).require_grad();
        let output = plain.parts(vector(&[1.0, 2.0]), |x| {
            plain.inner.forward(x) * side.clone()
        });
        values(side.grad(&(output.sum() * two(-8)).backward()).unwrap())
    };
    assert_eq!(values(side.grad(&grads).unwrap()), expected);

    let leaking = |m: &Chain| {
        let forward = |x: Tensor<1>| {
            let first = m.first.forward(x);
            let side = first.clone();
            let inner = rescaled(3, first, |x| m.inner.forward(x) * side);
            m.last.forward(inner)
        };
        amp.autocast(vector(&[1.0, 2.0]), forward).sum() * two(-8)
    };
    match amp.check(&chain, leaking) {
        Err(AmpError::BorderLeak { parameter, .. }) => assert_eq!(parameter, "first.factor"),
        other => panic!("{other:?}"),
    }
    // Given to the part, it is taken back.
    let given = |m: &Chain| {
        let forward = |x: Tensor<1>| {
            let first = m.first.forward(x);
            let pair = (first.clone(), first);
            let inner = rescaled(3, pair, |(x, side)| m.inner.forward(x) * side);
            m.last.forward(inner)
        };
        amp.autocast(vector(&[1.0, 2.0]), forward).sum() * two(-8)
    };
    amp.check(&chain, given).unwrap();
}

/// As out of a scope: an f32 tensor that requires gradients would have them without the factor.
#[test]
fn what_a_part_refuses_is_told_by_the_scope() {
    let amp = f16(two(9));
    let side = vector(&[4.0, 0.5]).require_grad();
    let result = amp.try_autocast(vector(&[1.0, 2.0]), |x| {
        rescaled(3, x, |_| side.clone() * 2.0)
    });
    let expected = AmpError::CapturedOutput { dtype: DType::F32 };
    assert_eq!(result.map(drop).unwrap_err(), expected);
}

#[test]
fn settings_outside_their_range() {
    let text = |result: Result<Rescale, AmpError>| result.unwrap_err().to_string();
    let part = || Rescale::adaloss("part");
    let share = text(part().with_statistics(0.0, 16.0));
    assert_eq!(
        share,
        "`underflow_share` is 0, but must be above 0 and at most 0.5"
    );
    let limit = text(part().with_statistics(0.1, f64::INFINITY));
    assert_eq!(
        limit,
        "`total_limit` is inf, but must be finite and at least 1"
    );
    let config = GradScalerConfig::new().with_growth_factor(1.0);
    assert!(text(part().with_scaler(config)).starts_with("`growth_factor` is 1"));
    assert!(
        text(Rescale::from(3).with_scaler(GradScalerConfig::new())).starts_with("`with_scaler`")
    );
    assert!(
        text(Rescale::dynamic("part").with_statistics(0.1, 2.0)).starts_with("`with_statistics`")
    );
}
