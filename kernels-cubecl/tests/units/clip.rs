use super::*;

#[test]
fn as_f64_finds_them() {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    for _ in 0..20_000 {
        let count = 1 + (next() * 40.0) as usize;
        let spread = next() * 60.0;
        let at = next() * 120.0 - 60.0;
        let norms: Vec<f64> = (0..count)
            .map(|_| (1.0 + next()) * ((next() - 0.5) * spread + at).exp2())
            .collect();
        let norm = norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt();
        let threshold = (norm * (next() * 4.0 - 2.0).exp2()) as f32;
        let all = NormClip::Joint {
            group: 3,
            threshold,
        };
        let joint = clip_factors(&vec![all; count], &norms);
        let expected = (f64::from(threshold) / (norm + 1e-6)).min(1.0);
        let error = (f64::from(joint[0]) / expected - 1.0).abs();
        assert!(error < 2f64.powi(-21), "{error}: {} {expected}", joint[0]);
        assert!(joint.iter().all(|factor| *factor == joint[0]));

        let own = clip_factors(&vec![NormClip::Own(threshold); count], &norms);
        for (own, norm) in own.into_iter().zip(norms) {
            let expected = (f64::from(threshold) / norm).min(1.0);
            let error = (f64::from(own) / expected - 1.0).abs();
            assert!(
                error < 2f64.powi(-22) || expected < 1e-37,
                "{own} {expected}"
            );
        }
    }
}

#[test]
fn at_the_edges() {
    let joint = |threshold| NormClip::Joint {
        group: 0,
        threshold,
    };
    assert_eq!(clip_factors(&[joint(1.0); 3], &[0.0; 3]), [1.0; 3]);
    assert_eq!(clip_factors(&[joint(1e-7)], &[0.0]), [1e-7 / 1e-6]);
    assert_eq!(clip_factors(&[joint(f32::INFINITY)], &[1e38]), [1.0]);
    assert_eq!(clip_factors(&[NormClip::Own(2.0)], &[2.0]), [1.0]);
    assert_eq!(clip_factors(&[NormClip::Own(2.0)], &[1e300]), [0.0]);
    assert_eq!(clip_factors(&[NormClip::Not], &[1e300]), [1.0]);
    let tiny = f64::from(f32::from_bits(1));
    assert_eq!(clip_factors(&[NormClip::Own(1.0)], &[tiny]), [1.0]);
}
