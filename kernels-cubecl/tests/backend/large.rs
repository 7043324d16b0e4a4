//! Tensors so large that f32 cannot count or add up what is in them, and that many threads share.

use super::*;

/// 2^24 + 1 values of a kind among 2^24 + 3: zeros, and what is not finite before scaling or after it alone.
pub fn counts_beyond_24_bits(system: &System) {
    const LENGTH: usize = (1 << 24) + 3;
    const MOST: u64 = (1 << 24) + 1;
    let infinity = f32::INFINITY;
    for (values, inverse, counts, [max_abs, norm]) in [
        ([0.0, -6.0, 8.0], 1.0, [0, 0, MOST], [8.0, 10.0]),
        ([0.0, -6.0, 8.0], 0.5, [0, 0, MOST], [4.0, 5.0]),
        ([-infinity, 0.0, 2.0], 0.5, [MOST, MOST, 1], [1.0; 2]),
        ([1e38, f32::NAN, 2.0], 16.0, [1, MOST + 1, 0], [32.0; 2]),
    ] {
        let [most, first, second] = values;
        let tensor = Tensor::<1>::full([LENGTH], most, (&device(), DType::F32));
        let tensor = tensor.slice_fill(12_345..12_346, first);
        let tensor = tensor.slice_fill(LENGTH - 1..LENGTH, second);
        let list = list_of([tensor]);
        let (products, status) = match inverse == 1.0 {
            true => (list.clone(), system.inspect(list)),
            false => system.unscale(list, inverse),
        };
        let (product, row) = (products.get::<1>(0), status.read()[0]);
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

/// 10^7 squares: of magnitudes up to 2^39 of both signs; and of small values beside one of which each is less than half a unit
/// in the last place.
pub fn sums_as_in_f64(system: &System) {
    const LENGTH: usize = 10_000_000;
    let mut bits = Bits(150);
    let mut draw = |_| (part(&mut bits) - 0.5) * (part(&mut bits) * 80.0 - 40.0).exp2();
    let mixed = (0..LENGTH).map(&mut draw).collect();
    let small = [vec![1.0], vec![1e-4; LENGTH - 1]].concat();
    for values in [mixed, small] {
        let wide = values.iter().map(|value| f64::from(*value));
        let norm = norm(&Vec::from_iter(wide));
        // A power of two: no product is rounded.
        let list = list_of([floats(values, [2, LENGTH / 2])]);
        let found = system.unscale(list, 0.125).1.read()[0].norm;
        system.assert_norm(found, norm / 8.0);
    }
}

/// The same input gives the same bits however the work is shared: again, by one thread, and by more than there are processors.
pub fn same_bits(system: &System) {
    let part: Tensor<1> = random(DType::F32, 140, [300_001]);
    // Many chunks of one large tensor beside small ones, one of the narrowest dtype that there is.
    let whole = Tensor::cat(vec![part.clone(); 4], 0);
    let narrow = random(dtypes()[0], 141, [270_000]);
    let list = list_of([whole, part, narrow, random(DType::F32, 142, [5])]);
    let rows = || {
        let mut rows = system.inspect(list.clone()).read();
        rows.extend(system.unscale(list.clone(), 0.3).1.read());
        // Which tells all bits apart.
        format!("{rows:?}")
    };
    let first = rows();
    for threads in [1, 2, 7, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        assert_eq!(pool.expect("threads").install(rows), first);
    }
}
