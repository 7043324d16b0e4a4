//! Scopes, islands and regions with factors in each other: factors are relative.
//!
//! All values are powers of two, so that gradients are exact, unless half precision cannot hold them.

use crate::support::{graph::*, *};

/// The left part and the outside one are the same, but for their handle.
pub fn chain() -> Net {
    let parts = [[2.0, -4.0], [0.5, 8.0], [-1.0, 0.25], [0.5, 8.0]];
    Net::new(parts.map(|factor| Gain::new(&factor)))
}

/// The gradients of a line, of its input and of the parameters that it reads.
pub fn gradients(amps: [&MixedPrecision; 2], line: &str) -> Vec<Vec<f32>> {
    let (net, input) = (attached(chain(), amps), vector(&[1.0, 2.0]).require_grad());
    let grads = loss_of(amps, &net, input.clone(), line).backward();
    let of_input = values(input.grad(&grads).unwrap());
    let of_net = all_gradients(&GradientsParams::from_grads(grads, &net), &net);
    [vec![of_input], of_net].concat()
}

/// Those without half precision.
fn plain(line: &str) -> Vec<Vec<f32>> {
    let full = MixedPrecision::f32();
    gradients([&full, &full], line)
}

/// What stands between two parts in a scope, and is one: the left part, or one of the outer scope's handle. `a?`, `b?` and `f32?` say what computes there.
const WAYS: &str = "
[b b? L ]
( ( f32? L ) )
( [b b? L ( f32? ) ] )
[b [free b? L ] ]
( [free ] ) [free a? O ]
{-6 a? O }
{8 a? O }
{3 thread( {2 a? O } ) }
{3 {1 a? O } }
{9 {-12 a? O } }
{3 ( f32? O ) }
( {3 f32? O } )
( {3 [ a? O ] } )
{3 [ a? O ] }
{3 ( [free {1 a? O } ] ) }
";

#[test]
fn factors_are_relative() {
    let [of_left, of_outside] = ["T L R ^-12", "T O R ^-12"].map(plain);
    for dtype in halves() {
        for (outer, inner) in [(14, 4), (3, 15), (9, 13)] {
            let (outer, inner) = (f16(two(outer)), scaled(dtype, two(inner)));
            for amps in [[&outer, &inner], [&inner, &outer]] {
                for way in WAYS.trim().lines() {
                    let found = gradients(amps, &format!("[ T {way} a? R ] ^-12"));
                    let is_left = way.contains('L');
                    let expected = if is_left { &of_left } else { &of_outside };
                    assert_eq!(&found, expected, "{way}");
                }
                let found = gradients(amps, "{4 [ T O R ] } ^-12");
                assert_eq!(found, of_outside);
            }
        }
    }
    // Without a scope around, the free function opens none, and a region stays in f32.
    plain("[free ( f32? ) f32? ] ^0");
    let (outer, inner) = (f16(two(9)), f16(two(3)));
    let region = gradients([&outer, &inner], "{3 T f32? } ^0");
    assert_eq!(region, plain("T ^0"));
    // Without half precision there is nothing to multiply.
    assert_eq!(plain("[ {100 T } ] ^100"), plain("[ T ] ^100"));
}

/// Each part has its own scale: what only that can hold is there, and nothing else.
#[test]
fn each_scope_has_its_own_scale() {
    let nested = |outer: i32, inner: i32, line: &str| -> [Vec<f32>; 4] {
        let [outer, inner] = [outer, inner].map(|exponent| f16(two(exponent)));
        gradients([&outer, &inner], line).try_into().unwrap()
    };
    // 2^-30 is below f16. The outer scale saves it in the last part, the inner one is too low.
    let [input, first, inner, last] = nested(16, 2, "[ T [b L ] R ] ^-30");
    assert_eq!(last, plain("T L R ^-30")[3]);
    assert_eq!([input, first, inner].concat(), [0.0; 6]);
    // With a low scale outside it is lost at once.
    let lost = nested(2, 16, "[ T [b L ] R ] ^-30");
    assert_eq!(lost.concat(), [0.0; 8]);
    // 2^-4 times 2^8 fits, times 2^22 it does not.
    let [.., inner, last] = nested(8, 22, "[ T [b L ] R ] ^-4");
    assert_eq!(last, plain("T L R ^-4")[3]);
    assert!(inner.iter().all(|value| value.is_infinite()), "{inner:?}");
}

/// What comes in as f32 goes out as f32, though there is a scope around. A tensor that is captured and taken in has its own gradient, unscaled, in a
/// region with a factor, too.
const AS_IN_F32: &str = "
[ T = ones [b b? L ] f32? swap taken R ] ^-8
O = ones [ T taken a? ] ^-30
O = ones [ T {3 taken a? } ] ^-30
";

/// Of two inputs, one of the outer scope, both go back there.
#[test]
fn what_a_scope_takes_in_has_its_own_gradient() {
    for dtype in halves() {
        let (outer, inner) = (scaled(dtype, two(12)), scaled(dtype, two(3)));
        for line in AS_IN_F32.trim().lines() {
            assert_eq!(gradients([&outer, &inner], line), plain(line), "{line}");
        }
        let output = outer.autocast(vector(&[1.0, 2.0]), |x| {
            let (x, y) = inner.autocast((x, vector(&[4.0, 0.5])), |pair| pair);
            assert_eq!([x.dtype(), y.dtype()], [dtype.into(); 2]);
            x * y
        });
        assert_eq!(values(output), [4.0, 1.0]);
    }
}
