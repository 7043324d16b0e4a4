//! Tensors so large that f32 cannot count or add up what is in them, and that many threads share.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::{TensorList, TensorStatus};

use crate::create::{floats, random};
use crate::system::{System, list_of};
use crate::{case::assert_same_bits, device::device, device::dtypes, host, random::Bits};

/// 2^24 + 1 values of a kind among 2^24 + 3: zeros, and what is not finite before scaling or after it alone.
pub fn counts_beyond_24_bits(system: &System) {
    const LENGTH: usize = (1 << 24) + 3;
    const MOST: u64 = (1 << 24) + 1;
    for (values, inverse, counts, [max_abs, norm]) in [
        ([0.0, -6.0, 8.0], 1.0, [0, 0, MOST], [8.0, 10.0]),
        ([0.0, -6.0, 8.0], 0.5, [0, 0, MOST], [4.0, 5.0]),
        (
            [f32::NEG_INFINITY, 0.0, 2.0],
            0.5,
            [MOST, MOST, 1],
            [1.0; 2],
        ),
        ([1e38, f32::NAN, 2.0], 16.0, [1, MOST + 1, 0], [32.0; 2]),
    ] {
        let [most, first, second] = values;
        let tensor = Tensor::<1>::full([LENGTH], most, (&device(), DType::F32));
        let tensor = tensor.slice_fill(12_345..12_346, first);
        let tensor = tensor.slice_fill(LENGTH - 1..LENGTH, second);
        let (product, row) = match inverse == 1.0 {
            true => (tensor.clone(), system.inspect_one(tensor)),
            false => system.unscale_one(tensor, inverse),
        };
        let found = [row.non_finite_before, row.non_finite, row.zeros];
        assert_eq!(found, counts, "{values:?}");
        let found = (row.elements, row.above, row.max_abs);
        assert_eq!(found, (LENGTH as u64, counts[1], max_abs), "{values:?}");
        system.assert_norm(row.norm, norm);
        let at = |at: usize| product.clone().slice(at..at + 1).into_scalar::<f32>();
        let found = [12_344, 12_345, 12_346, LENGTH - 1].map(|place| at(place).to_bits());
        let expected = [most, first, most, second].map(|value| (value * inverse).to_bits());
        assert!(found == expected || values[1].is_nan(), "{values:?}");
    }
}

/// 10^7 squares: of magnitudes from 2^-40 to 2^39 of both signs; and of small values beside one of which each is less than half a unit
/// in the last place.
pub fn sums_as_in_f64(system: &System) {
    const LENGTH: usize = 10_000_000;
    let mut bits = Bits(150);
    let mut draw = || {
        let draw = bits.draw();
        let exponent = 127 - 40 + (draw >> 32) % 80;
        let fraction = draw as u32 & 0x7F_FFFF;
        f32::from_bits(((draw >> 63) as u32) << 31 | (exponent as u32) << 23 | fraction)
    };
    let mixed = (0..LENGTH).map(|_| draw()).collect();
    let small = [vec![1.0], vec![1e-4; LENGTH - 1]].concat();
    for values in [mixed, small] {
        let wide: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        let norm = host::norm(&wide);
        drop(wide);
        // A power of two: no product is rounded.
        let row = system.unscale_one(floats(values, [2, LENGTH / 2]), 0.125).1;
        system.assert_norm(row.norm, norm / 8.0);
    }
}

fn rows(system: &System, list: &TensorList) -> Vec<TensorStatus> {
    let mut rows = system.inspect(list.clone()).read();
    rows.extend(system.unscale(list.clone(), 0.3).1.read());
    rows
}

/// The same input gives the same bits however the work is shared: again, by one thread, and by more than there are processors.
pub fn same_bits(system: &System) {
    let part: Tensor<1> = random(DType::F32, 140, [300_001]);
    // Many chunks of one large tensor beside small ones, one of the narrowest dtype that there is.
    let whole = Tensor::cat(vec![part.clone(); 4], 0);
    let narrow = random(dtypes()[0], 141, [270_000]);
    let list = list_of([whole, part, narrow, random(DType::F32, 142, [5])]);
    let first = rows(system, &list);
    for threads in [1, 2, 7, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let again = pool.expect("threads").install(|| rows(system, &list));
        assert_eq!(again.len(), first.len());
        let both = again.iter().zip(&first);
        both.for_each(|(again, first)| assert_same_bits(again, first));
    }
}
