//! Clipping by norms that only the device knows: the factors that the host finds from the same rows, bit for bit.

use burn::tensor::{Device, Tensor};
use burn_amp_kernels::{
    ClipTable, DeviceScale, NormClip, ScaleState, UpdateRow, can_update, clip_factors, inspect,
};

use crate::{
    create::part,
    device::{device, is_cube},
    formula::SGD,
    random::Bits,
    system::list_of,
};

/// The factors that the device and the host find for gradients.
fn both(gradients: &[Vec<f32>], clips: &[NormClip], device: &Device) -> [Vec<u32>; 2] {
    let tensor = |gradient: &Vec<f32>| Tensor::<1>::from_floats(gradient.as_slice(), device);
    let status = inspect(list_of(gradients.iter().map(tensor))).unwrap();
    let table = ClipTable::upload(clips, device);
    // From the last to the first: a parameter's gradient may stand anywhere.
    let order: Vec<u32> = (0..gradients.len() as u32).rev().collect();
    let row = UpdateRow {
        taken: 1.0,
        scale: 1.0,
        ..UpdateRow::default()
    };
    let rows = vec![row; order.len()];
    let scale = ScaleState::default().upload(device);
    let sent = DeviceScale::send(&rows, &order, &order, device);
    let rows = scale.decide(SGD, sent, Some((&table, &status)));
    let rows: Vec<f32> = rows.into_data().iter().collect();
    let found = rows.chunks(12).rev().map(|row| row[1].to_bits());
    let norms: Vec<f64> = status.read().iter().map(|status| status.norm).collect();
    let expected = clip_factors(clips, &norms).into_iter();
    [found.collect(), expected.map(f32::to_bits).collect()]
}

#[test]
fn the_factors_of_the_host() {
    let device = device();
    if !can_update(&Tensor::<1>::ones([1], &device)) {
        return;
    }
    let mut bits = Bits(7);
    let mut next = || part(&mut bits);
    let mut clipped = 0;
    let rounds = if is_cube() { 30 } else { 400 };
    for round in 0..rounds {
        let count = 1 + (next() * 90.0) as usize;
        let (spread, at) = (next() * 40.0, next() * 160.0 - 80.0);
        let gradients: Vec<Vec<f32>> = (0..count)
            .map(|_| {
                let length = 1 + (next() * 3.0) as usize;
                let size = ((next() - 0.5) * spread + at).exp2();
                let zero = next() < 0.1;
                let mut value = || (next() - 0.5) * if zero { 0.0 } else { size };
                (0..length).map(|_| value()).collect()
            })
            .collect();
        let threshold = (at + next() * 8.0 - 4.0).exp2();
        let clips: Vec<NormClip> = (0..count)
            .map(|_| match (next() * 5.0) as u32 {
                0 => NormClip::Not,
                1 => NormClip::Own(threshold * next()),
                group => NormClip::Joint {
                    group: group as u16,
                    threshold,
                },
            })
            .collect();
        let [found, expected] = both(&gradients, &clips, &device);
        assert_eq!(found, expected, "round {round}");
        clipped += found.iter().filter(|bits| **bits < 1f32.to_bits()).count();
    }
    assert!(clipped > 5 * rounds, "{clipped}");
}

/// Norms beyond f32, of zeros and of subnormal values; thresholds at both ends.
#[test]
fn at_the_edges() {
    let device = device();
    if !can_update(&Tensor::<1>::ones([1], &device)) {
        return;
    }
    let joint = |threshold| NormClip::Joint {
        group: 0,
        threshold,
    };
    let huge = vec![vec![f32::MAX; 3], vec![f32::MAX]];
    let small = vec![vec![f32::MIN_POSITIVE; 2], vec![0.0], vec![1e-30]];
    for threshold in [f32::MIN_POSITIVE, 1e-30, 1e-7, 1.0, 1e30, f32::MAX] {
        for gradients in [&huge, &small, &vec![vec![0.0; 2]]] {
            for clip in [joint(threshold), NormClip::Own(threshold)] {
                let [found, expected] = both(gradients, &vec![clip; gradients.len()], &device);
                assert_eq!(found, expected, "{clip:?} of {gradients:?}");
            }
        }
    }
}
