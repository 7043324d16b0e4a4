//! Clipping by norms that only the device knows: the factors that the host finds from the same rows, bit for bit, and those of f64, nearly.

use super::*;

/// Compares the factors that the device finds for gradients with those of the host. Returns how many clip.
fn check(gradients: &[Vec<f32>], clips: &[NormClip]) -> usize {
    let device = device();
    let tensor = |gradient: &Vec<f32>| Tensor::<1>::from_floats(gradient.as_slice(), &device);
    let status = inspect(list_of(gradients.iter().map(tensor))).unwrap();
    let table = ClipTable::upload(clips, &device);
    // From the last to the first: a parameter's gradient may stand anywhere.
    let order: Vec<u32> = (0..gradients.len() as u32).rev().collect();
    let sgd = formula::sgd(false, false);
    let mut row = formula::row(sgd, 0);
    row.scale = 1.0;
    let rows = vec![row; order.len()];
    let scale = ScaleState::default().upload(&device);
    let sent = DeviceScale::send(&rows, &order, &order, &device);
    let rows = scale.decide(sgd, sent, table.factors(&status));
    let rows: Vec<f32> = rows.into_data().iter().collect();
    let found: Vec<u32> = rows.chunks(12).rev().map(|row| row[1].to_bits()).collect();
    let norms: Vec<f64> = status.read().iter().map(|status| status.norm).collect();
    let factors = clip_factors(clips, &norms);
    let expected: Vec<u32> = factors.iter().copied().map(f32::to_bits).collect();
    assert_eq!(found, expected, "{clips:?} of {gradients:?}");
    // The factor is that of f64 but for the last bits.
    for ((factor, clip), norm) in factors.iter().zip(clips).zip(&norms) {
        let (threshold, norm) = match *clip {
            NormClip::Not => (f32::INFINITY, *norm),
            NormClip::Own(threshold) => (threshold, *norm),
            NormClip::Joint { threshold, .. } => {
                let all = clips.iter().zip(&norms);
                let members = all.filter(|(other, _)| *other == clip);
                let squares: f64 = members.map(|(_, norm)| norm * norm).sum();
                (threshold, squares.sqrt() + 1e-6)
            }
        };
        let expected = (f64::from(threshold) / norm).min(1.0);
        let error = (f64::from(*factor) / expected - 1.0).abs();
        let near = error < 2f64.powi(-21) || expected < 1e-37;
        assert!(near, "{error}: {factor} for {expected}, {clip:?}");
    }
    factors.iter().filter(|factor| **factor < 1.0).count()
}

fn joint(threshold: f32) -> NormClip {
    let group = 0;
    NormClip::Joint { group, threshold }
}

#[test]
fn drawn_gradients() {
    let mut bits = Bits(7);
    let mut next = || part(&mut bits);
    let mut clipped = 0;
    let rounds = if is_cube() { 30 } else { 400 };
    for _ in 0..rounds {
        let count = 1 + (next() * 90.0) as usize;
        let (spread, at) = (next() * 40.0, next() * 160.0 - 80.0);
        let mut gradient = |_| {
            let size = ((next() - 0.5) * spread + at).exp2();
            let size = if next() < 0.1 { 0.0 } else { size };
            vec![size; 1 + (next() * 3.0) as usize]
        };
        let gradients: Vec<Vec<f32>> = (0..count).map(&mut gradient).collect();
        let threshold = (at + next() * 8.0 - 4.0).exp2();
        let mut clip = |_| match (next() * 5.0) as u16 {
            0 => NormClip::Not,
            1 => NormClip::Own(threshold * next()),
            group => NormClip::Joint { group, threshold },
        };
        let clips: Vec<NormClip> = (0..count).map(&mut clip).collect();
        clipped += check(&gradients, &clips);
    }
    assert!(clipped > 5 * rounds, "{clipped}");
}

/// Norms beyond f32, of zeros and of subnormal values; thresholds at both ends; and norms that no gradient has.
#[test]
fn at_the_edges() {
    let huge = vec![vec![f32::MAX; 3], vec![f32::MAX]];
    let small = vec![vec![f32::MIN_POSITIVE; 2], vec![0.0], vec![1e-30]];
    for threshold in [f32::MIN_POSITIVE, 1e-30, 1e-7, 1.0, 1e30, f32::MAX] {
        for gradients in [&huge, &small, &vec![vec![0.0; 2]]] {
            for clip in [joint(threshold), NormClip::Own(threshold)] {
                check(gradients, &vec![clip; gradients.len()]);
            }
        }
    }
    let tiny = f64::from(f32::from_bits(1));
    for (clip, norm, expected) in [
        (joint(f32::INFINITY), 1e38, 1.0),
        (NormClip::Own(2.0), 1e300, 0.0),
        (NormClip::Not, 1e300, 1.0),
        (NormClip::Own(1.0), tiny, 1.0),
    ] {
        let found = clip_factors(&[clip; 3], &[norm; 3]);
        assert_eq!(found, [expected; 3], "{clip:?} of {norm}");
    }
}

/// To the bits that are left of them beside the largest.
#[test]
fn small_norms_are_rounded_before_they_are_squared() {
    let mut norms = [1.0 + 3.0 * f64::from(f32::EPSILON); 37];
    norms[0] = 4.0;
    let norm = norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt();
    let expected = (0.5 / (norm + 1e-6)) as f32;
    assert_eq!(clip_factors(&[joint(0.5); 37], &norms), [expected; 37]);
}
