//! Scopes in scopes, islands in islands: factors are relative.
//!
//! All values are powers of two, so that gradients are exact, unless half precision cannot hold them.

use crate::support::*;

/// A model that has its own `autocast`, inside another's.
fn nested(outer: &MixedPrecision, inner: &MixedPrecision, weight: f64) -> Gradients {
    let chain = Chain::new().attach(outer, inner);
    let own = |x: Tensor<1>| {
        assert_eq!(x.dtype(), DType::from(outer.dtype()));
        let output = inner.autocast(x, |x| {
            assert_eq!(x.dtype(), DType::from(inner.dtype()));
            chain.inner.forward(x)
        });
        assert_eq!(output.dtype(), DType::from(outer.dtype()));
        output
    };
    chain.gradients(weight, |x| outer.autocast(x, |x| chain.parts(x, own)))
}

#[test]
fn factors_are_relative() {
    let expected = Chain::new().plain(two(-10));
    for dtype in halves() {
        for (outer, inner) in [(14, 4), (3, 15), (9, 13)] {
            let (outer, inner) = (f16(two(outer)), scaled(dtype, two(inner)));
            assert_eq!(nested(&outer, &inner, two(-10)), expected);
            assert_eq!(nested(&inner, &outer, two(-10)), expected);
        }
    }
}

/// Each part has its own scale: what only that can hold is there, and nothing else.
#[test]
fn each_scope_has_its_own_scale() {
    // 2^-30 is below f16. The outer scale saves it in the last part, the inner one is too low.
    let weight = two(-30);
    let [input, first, inner, last] = nested(&f16(two(16)), &f16(two(2)), weight);
    assert_eq!(last, Chain::new().plain(weight)[3]);
    assert_eq!([input, first, inner].concat(), [0.0; 6]);
    // With a low scale outside it is lost at once.
    let grads = nested(&f16(two(2)), &f16(two(16)), weight);
    assert_eq!(grads.concat(), [0.0; 8]);
    // 2^-4 times 2^8 fits, times 2^22 it does not.
    let weight = two(-4);
    let [.., inner, last] = nested(&f16(two(8)), &f16(two(22)), weight);
    assert_eq!(last, Chain::new().plain(weight)[3]);
    assert!(inner.iter().all(|value| value.is_infinite()), "{inner:?}");
}

/// What comes in as f32 goes out as f32, though there is a scope around.
#[test]
fn f32_in_a_scope_gives_f32_back() {
    let (outer, inner) = (f16(two(12)), f16(two(3)));
    let captured = || vector(&[4.0, 0.5]).require_grad();
    let chain = Chain::new().attach(&outer, &inner);
    let side = captured();
    let found = chain.gradients(two(-8), |x| {
        outer.autocast(x, |x| {
            let side = inner.autocast(side.clone(), |x| chain.inner.forward(x));
            assert_eq!(side.dtype(), DType::F32);
            chain.parts(x, |x| x * outer.cast(side.clone()))
        })
    });
    let plain = Chain::new();
    let times_side = |x| x * plain.inner.forward(captured());
    let expected = plain.gradients(two(-8), |x| plain.parts(x, times_side));
    assert_eq!(found, expected);

    // Of two inputs, one of the outer scope, both go back there.
    let output = outer.autocast(vector(&[1.0, 2.0]), |x| {
        let (x, y) = inner.autocast((x, captured()), |pair| pair);
        assert_eq!([x.dtype(), y.dtype()], [DType::F16; 2]);
        x * y
    });
    assert_eq!(values(output), [4.0, 1.0]);
}

#[test]
fn islands_in_islands_and_scopes_in_islands() {
    let expected = Chain::new().plain(two(-8));
    for dtype in halves() {
        let (amp, inner) = (f16(two(12)), scaled(dtype, two(3)));
        let chain = Chain::new().attach(&amp, &inner);
        let seen = || chain.inner.factor.val().dtype();
        let island = |x: Tensor<1>| {
            let output = in_f32(x, |x| chain.inner.forward(x));
            assert_eq!([seen(), output.dtype()], [DType::F32; 2]);
            output
        };
        let scope = |x: Tensor<1>| {
            let output = inner.autocast(x, |x| {
                assert_eq!(seen(), DType::from(dtype));
                // And an island in it.
                in_f32(chain.inner.forward(x), |x| x)
            });
            assert_eq!([seen(), output.dtype()], [DType::F32; 2]);
            output
        };
        for part in [&island as &dyn Fn(Tensor<1>) -> Tensor<1>, &scope] {
            let parts = |x| chain.parts(x, |x| in_f32(x, part));
            let found = chain.gradients(two(-8), |x| amp.autocast(x, parts));
            assert_eq!(found, expected);
        }
    }
}

/// The free function opens a scope of the `MixedPrecision` that is around it, and none elsewhere.
#[test]
fn a_bare_autocast_is_that_of_the_scope_around() {
    let (a, b) = (f16(two(12)), f16(two(3)));
    let inside = |x: Tensor<1>| {
        let mut dtype = x.dtype();
        let output = autocast(x, |x| {
            dtype = x.dtype();
            x
        });
        (output, dtype)
    };
    let (output, dtype) = inside(vector(&[1.0]));
    assert_eq!([output.dtype(), dtype], [DType::F32; 2]);

    let chain = Chain::new().attach(&a, &b);
    let found = chain.gradients(two(-8), |x| {
        a.autocast(x, |x| {
            let (output, dtype) = inside(in_f32(x, |x| inside(x).0));
            assert_eq!([output.dtype(), dtype], [DType::F16; 2]);
            chain.parts(output, |x| {
                // `b` is the nearest here.
                b.autocast(x, |x| autocast(x, |x| chain.inner.forward(x)))
            })
        })
    });
    assert_eq!(found, Chain::new().plain(two(-8)));
}
