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

/// The fields that can be set, in that order.
const FIELDS: [&str; 5] = [
    "loss_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "growth_tracker",
];

fn set(scaler: &mut GradScaler, field: &str, value: f64) -> Result<(), AmpError> {
    match field {
        "loss_scale" => scaler.set_loss_scale(value),
        "growth_factor" => scaler.set_growth_factor(value),
        "backoff_factor" => scaler.set_backoff_factor(value),
        "growth_interval" => scaler.set_growth_interval(value as u32),
        _ => scaler.set_growth_tracker(value as u32),
    }
}

/// Checks that the error names the field, the value and what is allowed, and that nothing changed.
fn refused(mut scaler: GradScaler, field: &str, value: &str, allowed: &str) {
    let before = fields(&scaler);
    let error = set(&mut scaler, field, value.parse().unwrap()).unwrap_err();
    let message = format!("`{field}` is {value}, but must be {allowed}");
    is_error(&error, "InvalidValue", [message.as_str()]);
    assert_eq!(fields(&scaler), before, "{message}");
}

#[test]
fn setters_set_their_field_only() {
    let mut scaler = dynamic();
    assert_eq!(fields(&scaler), (1024.0, 4.0, 0.25, 10, 0));
    for (field, value, expected) in [
        ("loss_scale", 4096.0, (4096.0, 4.0, 0.25, 10, 0)),
        ("growth_factor", 1.5, (4096.0, 1.5, 0.25, 10, 0)),
        ("backoff_factor", 0.75, (4096.0, 1.5, 0.75, 10, 0)),
        ("growth_tracker", 9.0, (4096.0, 1.5, 0.75, 10, 9)),
        ("growth_interval", 7.0, (4096.0, 1.5, 0.75, 7, 9)),
        // Rounded to f32, as the scale is one.
        ("loss_scale", 1000.1, (1000.1, 1.5, 0.75, 7, 9)),
    ] {
        set(&mut scaler, field, value).unwrap();
        assert_eq!(fields(&scaler), expected);
    }
}

#[test]
fn values_out_of_range() {
    let values = [
        "0 -8 NaN inf 1 4097",
        "1 0.5 -2 NaN inf",
        "0 1 1.5 -0.5 NaN",
        "0",
        "10 11 4294967295",
    ];
    for (field, values) in FIELDS.into_iter().zip(values) {
        for value in values.split(' ') {
            refused(dynamic(), field, value, "");
        }
    }
    for value in ["1e39", "1e300", "1e-46", "-1e-300"] {
        let unbounded = GradScalerConfig::new().init().unwrap();
        refused(unbounded, "loss_scale", value, "positive");
    }
}

#[test]
fn a_static_scale_has_one_field() {
    let mut scaler = at_scale(128.0).with_dynamic(false).init().unwrap();
    assert_eq!(fields(&scaler), (128.0, 1.0, 1.0, 0, 0));
    let allowed = "left alone: the loss scale is static";
    for field in &FIELDS[1..] {
        refused(scaler.clone(), field, "5", allowed);
    }
    refused(scaler.clone(), "loss_scale", "0", "positive");
    scaler.set_loss_scale(64.0).unwrap();
    assert_eq!(scaler.loss_scale(), 64.0);
}
