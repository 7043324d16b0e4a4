//! Each failure is explained, and what the audit advises fixes it.

use burn_amp::AmpError;
use burn_amp_report::Verdict;
use failures::{Failure, run};
use std::fs;

/// Enough for the run that ends.
const STEPS: usize = 9;

#[test]
fn underflow_is_fixed_by_the_scale_that_is_advised() {
    let folder = tempfile::tempdir().unwrap();
    let run = |scale| run(Failure::Underflow, scale, STEPS, folder.path()).unwrap();
    let failed = run(None);
    let Verdict::Underflow { raise_to, .. } = failed.audit.verdict() else {
        panic!("{}", failed.audit);
    };
    // Nothing was wrong that a recorder sees: it was written on request.
    assert_eq!(failed.flights.len(), 1);
    let json = fs::read_to_string(failed.flights[0].with_extension("json")).unwrap();
    assert!(json.contains("\"why\": \"on request\""));
    assert!(raise_to.is_some());
    let fixed = run(*raise_to);
    assert!(fixed.audit.verdict().is_fine(), "{}", fixed.audit);
}

#[test]
fn an_overflow_on_the_way_forward_is_found_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let failed = run(Failure::Overflow, None, STEPS, folder.path()).unwrap();
    let Verdict::ForwardOverflow { at, in_f32 } = failed.audit.verdict() else {
        panic!("{}", failed.audit);
    };
    assert_eq!(at.as_deref(), Some("attention"));
    assert_eq!(in_f32, &["attention"]);
    let error = failed.error.unwrap();
    let is_forward = matches!(
        error,
        AmpError::LossNotFinite {
            output_finite: false,
            ..
        }
    );
    assert!(is_forward, "{error}");
    // When it came twice, and when it ended the run.
    assert_eq!(failed.flights.len(), 2);
    let json = fs::read_to_string(failed.flights[0].with_extension("json")).unwrap();
    let json = json.replace(char::is_whitespace, "");
    let first = r#""first":{"probe":"attention","way":"forward""#;
    assert!(json.contains(first), "{json}");
}

#[test]
fn a_fault_of_the_backend_is_no_fault_of_the_scale() {
    let folder = tempfile::tempdir().unwrap();
    let failed = run(Failure::Backend, None, STEPS, folder.path()).unwrap();
    let Verdict::Backend { in_f32, .. } = failed.audit.verdict() else {
        panic!("{}", failed.audit);
    };
    assert_eq!(in_f32, &["gate"]);
    assert!(folder.path().join("reproduce.json").exists());
    assert_eq!(failed.skipped, 0);
}
