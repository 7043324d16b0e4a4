//! Scopes, islands and regions with factors in each other: factors are relative.
//!
//! All values are powers of two, so that gradients are exact, unless half precision cannot hold them.

use crate::support::*;

/// The second part of a chain, which computes in this dtype.
fn second(chain: &Chain, dtype: DType) -> impl Fn(Tensor<1>) -> Tensor<1> + Copy {
    move |x| {
        assert_eq!([x.dtype(), chain.inner.factor.val().dtype()], [dtype; 2]);
        chain.inner.forward(x)
    }
}

/// A chain in a scope of `a`, whose second part stands in scopes of `a` and `b`, in f32, and in regions with factors, on other threads too.
fn whatever_is_nested(a: &MixedPrecision, b: &MixedPrecision) {
    let (weight, [half, own]) = (two(-12), [a, b].map(|amp| DType::from(amp.dtype())));
    let (chain, other) = (Chain::new().attach(a, a), Chain::new().attach(a, b));
    let [part, full] = [half, DType::F32].map(|dtype| second(&chain, dtype));
    let [of_b, b_full] = [own, DType::F32].map(|dtype| second(&other, dtype));
    let elsewhere = |x: Tensor<1>| {
        let scope = Scope::current();
        let work = || scope.enter(|| by(2, x, part));
        std::thread::scope(|threads| threads.spawn(work).join().unwrap())
    };
    let one = |x| by(1, x, part);
    let in_region = |x: Tensor<1>| by(3, x, |x| a.autocast(x, part));
    let in_and_out = |x| in_f32(x, |x| b.autocast(x, |x| in_f32(of_b(x), |x| x)));
    let again = |x| autocast(in_f32(x, |x| autocast(x, |x| x)), part);
    type Way<'a> = &'a dyn Fn(Tensor<1>) -> Tensor<1>;
    let ways: [(&Chain, Way); 15] = [
        (&other, &|x| b.autocast(x, of_b)),
        (&other, &|x| in_f32(x, |x| in_f32(x, b_full))),
        // And an island in it.
        (&other, &in_and_out),
        // The free function opens a scope of the nearest `MixedPrecision` that is around it.
        (&other, &|x| b.autocast(x, |x| autocast(x, of_b))),
        (&chain, &again),
        (&chain, &|x| by(-6, x, part)),
        (&chain, &|x| by(8, x, part)),
        (&chain, &|x| by(3, x, elsewhere)),
        (&chain, &|x| by(3, x, one)),
        (&chain, &|x| by(9, x, |x| by(-12, x, part))),
        (&chain, &|x| by(3, x, |x| in_f32(x, full))),
        (&chain, &|x| in_f32(x, |x| by(3, x, full))),
        (&chain, &|x| in_f32(x, in_region)),
        (&chain, &in_region),
        (&chain, &|x| by(3, x, |x| in_f32(x, |x| autocast(x, one)))),
    ];
    let expected = Chain::new().plain(weight);
    for (index, (chain, way)) in ways.into_iter().enumerate() {
        let back = |x| {
            let output = way(x);
            assert_eq!(output.dtype(), half, "way {index}");
            output
        };
        assert_eq!(chain.around(a, weight, back), expected, "way {index}");
    }
    let scope = |x| a.autocast(x, |x| chain.parts(x, part));
    let around = chain.gradients(weight, |x| by(4, x, scope));
    assert_eq!(around, expected);
}

#[test]
fn factors_are_relative() {
    for dtype in halves() {
        for (outer, inner) in [(14, 4), (3, 15), (9, 13)] {
            let (outer, inner) = (f16(two(outer)), scaled(dtype, two(inner)));
            whatever_is_nested(&outer, &inner);
            whatever_is_nested(&inner, &outer);
        }
    }
    // Without a scope around, the free function opens none.
    let dtypes = |x: Tensor<1>| assert_eq!(x.dtype(), DType::F32);
    autocast(vector(&[1.0]), |x| dtypes(in_f32(x, |x| x)));
}

/// Each part has its own scale: what only that can hold is there, and nothing else.
#[test]
fn each_scope_has_its_own_scale() {
    let nested = |outer: i32, inner: i32, weight| {
        let (outer, inner) = (f16(two(outer)), f16(two(inner)));
        let chain = Chain::new().attach(&outer, &inner);
        let own = |x| inner.autocast(x, |x| chain.inner.forward(x));
        chain.around(&outer, weight, own)
    };
    // 2^-30 is below f16. The outer scale saves it in the last part, the inner one is too low.
    let weight = two(-30);
    let [input, first, inner, last] = nested(16, 2, weight);
    assert_eq!(last, Chain::new().plain(weight)[3]);
    assert_eq!([input, first, inner].concat(), [0.0; 6]);
    // With a low scale outside it is lost at once.
    assert_eq!(nested(2, 16, weight).concat(), [0.0; 8]);
    // 2^-4 times 2^8 fits, times 2^22 it does not.
    let weight = two(-4);
    let [.., inner, last] = nested(8, 22, weight);
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
