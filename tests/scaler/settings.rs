//! The getters and setters of PyTorch's five fields: every setter refuses a bad value and keeps the old one.

use burn_amp_tests::prelude::*;

fn dynamic() -> GradScaler {
    let config = at_scale(1024.0)
        .with_growth_factor(4.0)
        .with_backoff_factor(0.25)
        .with_growth_interval(10)
        .with_min_scale(Some(2.0))
        .with_max_scale(Some(4096.0));
    config.init().unwrap()
}

/// Everything there is to get.
fn fields(scaler: &GradScaler) -> (f32, f64, f64, u32, u32) {
    (
        scaler.loss_scale(),
        scaler.growth_factor(),
        scaler.backoff_factor(),
        scaler.growth_interval(),
        scaler.growth_tracker(),
    )
}

fn invalid(result: Result<(), AmpError>) -> (&'static str, String, String) {
    match result {
        Err(AmpError::InvalidValue {
            field,
            value,
            allowed,
        }) => (field, value, allowed),
        other => panic!("{other:?}"),
    }
}

/// Checks that the error names the field, the value and the range, and that nothing changed.
fn refused(scaler: &GradScaler, result: Result<(), AmpError>, field: &str, value: &str) {
    let message = result.clone().unwrap_err().to_string();
    let (found, given, allowed) = invalid(result);
    assert_eq!((found, given.as_str()), (field, value));
    let expected = format!("`{field}` is {value}, but must be {allowed}");
    assert_eq!(message, expected);
    assert!(!allowed.is_empty());
    assert_eq!(fields(scaler), (1024.0, 4.0, 0.25, 10, 0));
}

#[test]
fn setters_set_their_field_only() {
    type Set = fn(&mut GradScaler) -> Result<(), AmpError>;
    let mut scaler = dynamic();
    assert_eq!(fields(&scaler), (1024.0, 4.0, 0.25, 10, 0));
    let sets: [(Set, _); 6] = [
        (|s| s.set_loss_scale(4096.0), (4096.0, 4.0, 0.25, 10, 0)),
        (|s| s.set_growth_factor(1.5), (4096.0, 1.5, 0.25, 10, 0)),
        (|s| s.set_backoff_factor(0.75), (4096.0, 1.5, 0.75, 10, 0)),
        (|s| s.set_growth_tracker(9), (4096.0, 1.5, 0.75, 10, 9)),
        (|s| s.set_growth_interval(7), (4096.0, 1.5, 0.75, 7, 9)),
        // Rounded to f32, as the scale is one.
        (|s| s.set_loss_scale(1000.1), (1000.1, 1.5, 0.75, 7, 9)),
    ];
    for (set, expected) in sets {
        set(&mut scaler).unwrap();
        assert_eq!(fields(&scaler), expected);
    }
}

#[test]
fn values_out_of_range() {
    type Set = fn(&mut GradScaler, f64) -> Result<(), AmpError>;
    let scales = [0.0, -8.0, f64::NAN, f64::INFINITY, 1.0, 4097.0];
    let growths = [1.0, 0.5, -2.0, f64::NAN, f64::INFINITY];
    let backoffs = [0.0, 1.0, 1.5, -0.5, f64::NAN];
    let trackers = [10.0, 11.0, 4294967295.0];
    let interval: Set = |scaler, value| scaler.set_growth_interval(value as u32);
    let tracker: Set = |scaler, value| scaler.set_growth_tracker(value as u32);
    let setters: [(_, Set, &[f64]); 5] = [
        ("loss_scale", GradScaler::set_loss_scale, &scales),
        ("growth_factor", GradScaler::set_growth_factor, &growths),
        ("backoff_factor", GradScaler::set_backoff_factor, &backoffs),
        ("growth_interval", interval, &[0.0]),
        ("growth_tracker", tracker, &trackers),
    ];
    let mut scaler = dynamic();
    for (field, set, values) in setters {
        for value in values {
            let result = set(&mut scaler, *value);
            refused(&scaler, result, field, &value.to_string());
        }
    }
    let mut unbounded = GradScalerConfig::new().init().unwrap();
    for bad in [1e39, 1e-46] {
        let field = invalid(unbounded.set_loss_scale(bad)).0;
        assert_eq!(field, "loss_scale");
        assert_eq!(unbounded.loss_scale(), 65536.0);
    }
}

#[test]
fn a_static_scale_has_one_field() {
    let mut scaler = at_scale(128.0).with_dynamic(false).init().unwrap();
    assert_eq!(fields(&scaler), (128.0, 1.0, 1.0, 0, 0));
    let results = [
        ("growth_factor", scaler.set_growth_factor(2.0)),
        ("backoff_factor", scaler.set_backoff_factor(0.5)),
        ("growth_interval", scaler.set_growth_interval(5)),
        ("growth_tracker", scaler.set_growth_tracker(0)),
    ];
    for (field, result) in results {
        let invalid = invalid(result);
        assert_eq!(invalid.0, field);
        assert!(invalid.2.contains("static"));
    }
    assert_eq!(fields(&scaler), (128.0, 1.0, 1.0, 0, 0));
    scaler.set_loss_scale(64.0).unwrap();
    assert_eq!(scaler.loss_scale(), 64.0);
    assert!(scaler.set_loss_scale(0.0).is_err());
    assert_eq!(scaler.loss_scale(), 64.0);
}
