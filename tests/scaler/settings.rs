//! The getters and setters of PyTorch's five fields: every setter refuses a bad value and keeps the old one.

use burn_amp_tests::prelude::*;

/// Each field, a value that it takes, and values that it refuses.
const FIELDS: &str = "
loss_scale > 4096 > 0 -8 NaN inf 1 4097
growth_factor > 1.5 > 1 0.5 -2 NaN inf
backoff_factor > 0.75 > 0 1 1.5 -0.5 NaN
growth_tracker > 9 > 10 11 4294967295
growth_interval > 17 > 0
";

/// Everything there is to get, in that order.
fn fields(scaler: &Scaler) -> [f64; 5] {
    [
        scaler.loss_scale().into(),
        scaler.growth_factor(),
        scaler.backoff_factor(),
        scaler.growth_tracker().into(),
        scaler.growth_interval().into(),
    ]
}

/// Checks that the error names the field, the value and what is allowed, and that nothing changed.
fn refused(scaler: &mut Scaler, field: &str, value: &str, allowed: &str) {
    let before = fields(scaler);
    let error = set_field(scaler, field, value.parse().unwrap()).unwrap_err();
    let message = format!("`{field}` is {value}, but must be {allowed}");
    is_error(&error, "InvalidValue", [message.as_str()]);
    assert_eq!(fields(scaler), before, "{message}");
}

#[test]
fn a_setter_sets_its_field_only_or_refuses() {
    let config = at_scale(1024.0).with_growth_factor(4.0);
    let config = config.with_backoff_factor(0.25).with_growth_interval(10);
    let config = config.with_min_scale(Some(2.0));
    let config = config.with_max_scale(Some(4096.0));
    let mut scaler = GradScaler::new(config).unwrap();
    let mut expected = [1024.0, 4.0, 0.25, 0.0, 10.0];
    for (index, [field, value, bad]) in rows(FIELDS).enumerate() {
        assert_eq!(fields(&scaler), expected);
        for bad in bad.split(' ') {
            refused(&mut scaler, field, bad, "");
        }
        expected[index] = value.parse().unwrap();
        set_field(&mut scaler, field, expected[index]).unwrap();
    }
    assert_eq!(fields(&scaler), expected);
    let mut unbounded = default_scaler();
    for value in ["1e39", "1e300", "1e-46", "-1e-300"] {
        refused(&mut unbounded, "loss_scale", value, "positive");
    }
    // Rounded to f32, as the scale is one.
    unbounded.set_loss_scale(1000.1).unwrap();
    assert_eq!(unbounded.loss_scale(), 1000.1);
}

#[test]
fn a_static_scale_has_one_field() {
    let mut scaler = GradScaler::new(at_scale(128.0).with_dynamic(false)).unwrap();
    assert_eq!(fields(&scaler), [128.0, 1.0, 1.0, 0.0, 0.0]);
    let allowed = "left alone: the loss scale is static";
    for [field, ..] in rows::<3>(FIELDS).skip(1) {
        refused(&mut scaler, field, "5", allowed);
    }
    refused(&mut scaler, "loss_scale", "0", "positive");
    scaler.set_loss_scale(64.0).unwrap();
    assert_eq!(scaler.loss_scale(), 64.0);
}
