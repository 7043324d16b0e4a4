//! What an audit writes.

use burn_amp_report::{Audit, ReportError, audit};
use burn_amp_tests::{prelude::*, says};
use std::cell::Cell;
use tempfile::TempDir;

use crate::faults;
use crate::network::{Network, at, audit_with, batch, f16, loss, same};

/// The folder that an audit has written.
fn saved(audit: &Audit) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    audit.save(folder.path()).unwrap();
    folder
}

fn page(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("audit.html")).unwrap()
}

#[test]
fn a_healthy_step_takes_five_losses_and_leaves_no_trace() {
    let amp = f16();
    let model = Network::new().apply_reparameterization(amp.clone());
    let losses = Cell::new(0);
    let found = audit(&model, &amp, |m| {
        losses.set(losses.get() + 1);
        loss(amp.autocast(batch(), |x| m.forward(x, same)))
    });
    assert!(found.unwrap().verdict().is_fine());
    assert_eq!(losses.get(), 5);
    let left = (amp.loss_scale(), amp.counters());
    assert_eq!(left, (65536.0, StepCounters::default()));
}

#[test]
fn a_page_and_all_figures_are_written() {
    let underflow = |x| sigmoid(x * 1e-2) * 1e-3;
    let folder = saved(&audit_with(&at(1.0), underflow, loss));
    let page = page(&folder);
    says(&page, ["<svg", "first.weight", "Raise the loss scale"]);
    for outside in ["src=", "href=", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let json: Value = json(folder.path().join("audit.json"));
    assert_eq!(json["verdict"]["kind"], "underflow");
    assert_eq!(json["runs"].as_array().unwrap().len(), 5);
    let first = &json["parameters"][0];
    assert_eq!(first["path"], "first.weight");
    assert_eq!(first["figures"][1]["lost"], 1.0);
    assert_eq!(json["layers"].as_array().unwrap().len(), 4);
    assert!(!folder.path().join("reproduce.json").exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_fault_of_the_backend_comes_with_values() {
    let folder = saved(&audit_with(&f16(), faults::without_gradient, loss));
    let json: Value = json(folder.path().join("reproduce.json"));
    let tensors = json["tensors"].as_array().unwrap().iter();
    let names: Vec<_> = tensors.map(|t| t["name"].as_str().unwrap()).collect();
    // It begins between the gradient that comes to `between` and what leaves it.
    for name in ["gradient at probe first", "gradient at probe between"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let lost = &json["tensors"][0];
    let any = |values: &str| lost[values].as_array().unwrap().iter().any(|v| *v != 0.0);
    assert!(!any("values") && any("in_f32"), "{lost}");

    // An audit that finds nothing of the kind leaves none of it.
    let loss_alone = faults::another_loss();
    says(&loss_alone, ["and the loss amplifies it"]);
    loss_alone.save(folder.path()).unwrap();
    assert!(!folder.path().join("reproduce.json").exists());
}

#[test]
fn values_beyond_f16_are_counted() {
    let json = audit_with(&at(2f64.powi(40)), same, loss).to_json();
    let json: Value = serde_json::from_str(&json).unwrap();
    let last = json["exponents"].as_array().unwrap().last().unwrap();
    assert!(last[0] == 17 && last[1].as_u64() > Some(100), "{last}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let audit = audit_with(&f16(), same, loss);
    let error = audit.save(file.path().join("folder")).unwrap_err();
    let named = matches!(&error, ReportError::File { path, .. } if path.ends_with("folder"));
    assert!(named, "{error}");
}

/// NaN in the data: no run is right, and no norm is zero.
#[test]
fn what_is_not_finite_in_f32_is_not_shown_as_right() {
    let audit = faults::nan_in_the_data();
    let text = audit.to_string();
    for wrong in ["right", "0.00e0"] {
        assert!(!text.contains(wrong), "{text}");
    }
    let json: Value = serde_json::from_str(&audit.to_json()).unwrap();
    assert_eq!(json["runs"][0]["is_right"], false);
    assert!(json["parameters"][0]["norm"].is_null());
    let page = page(&saved(&audit));
    assert!(page.contains("<td>inf / NaN</td>"), "{page}");
    assert!(!page.contains(">right<"), "{page}");
}
