//! What an audit writes.

use burn_amp_report::{Audit, ReportError, audit};
use burn_amp_tests::{prelude::*, says};
use std::{cell::Cell, convert::identity};
use tempfile::TempDir;

use crate::network::{Network, audit_of, batch, loss};
use crate::programs::{is_half, without_gradient};
use crate::verdicts::{DEFAULT, Way, in_the_data};

/// The folder that an audit has written, its page, and a file of it.
fn saved(audit: &Audit, file: &str) -> (TempDir, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    audit.save(folder.path()).unwrap();
    let page = fs::read_to_string(folder.path().join("audit.html")).unwrap();
    let json = json(folder.path().join(file));
    (folder, page, json)
}

fn array(json: &Value) -> &[Value] {
    json.as_array().unwrap()
}

#[test]
fn a_healthy_step_takes_five_losses_and_leaves_no_trace() {
    let amp = MixedPrecision::f16();
    let model = Network::new().apply_reparameterization(amp.clone());
    let losses = Cell::new(0);
    let found = audit(&model, &amp, |m| {
        losses.set(losses.get() + 1);
        loss(amp.autocast(batch(), |x| m.forward(x, identity)))
    });
    assert!(found.unwrap().verdict().is_fine());
    assert_eq!(losses.get(), 5);
    assert_eq!(amp.loss_scale(), 65536.0);
    assert_eq!(amp.counters(), StepCounters::default());
}

#[test]
fn a_page_and_all_figures_are_written() {
    let underflow = |x| sigmoid(x * 1e-2) * 1e-3;
    let (folder, page, json) = saved(&Way::At(1.0).audit(&underflow, &loss), "audit.json");
    says(&page, ["<svg", "first.weight", "Raise the loss scale"]);
    for outside in ["src=", "href=", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(json["verdict"]["kind"], "underflow");
    let counts = ["runs", "layers"].map(|of| array(&json[of]).len());
    assert_eq!(counts, [5, 4]);
    let first = &json["parameters"][0];
    assert_eq!(first["path"], "first.weight");
    assert_eq!(first["figures"][1]["lost"], 1.0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    // Values beyond f16 are counted.
    let high = Way::At(2f64.powi(40)).audit(&identity, &loss);
    let json: Value = serde_json::from_str(&high.to_json()).unwrap();
    let last = array(&json["exponents"]).last().unwrap();
    assert!(last[0] == 17 && last[1].as_u64() > Some(100), "{last}");
}

#[test]
fn a_fault_of_the_backend_comes_with_values() {
    let audit = DEFAULT.audit(&without_gradient, &loss);
    let (folder, _, json) = saved(&audit, "reproduce.json");
    // It begins between the gradient that comes to `between` and what leaves it.
    for name in ["gradient at probe first", "gradient at probe between"] {
        let mut tensors = array(&json["tensors"]).iter();
        assert!(tensors.any(|tensor| tensor["name"] == name), "{name}");
    }
    let lost = &json["tensors"][0];
    let any = |values: &str| array(&lost[values]).iter().any(|value| *value != 0.0);
    assert!(!any("values") && any("in_f32"), "{lost}");

    // An audit that finds nothing of the kind leaves none of it: here gradients are right, and the loss is not.
    let loss_alone = audit_of(&MixedPrecision::f16(), Network::new(), |amp, m| {
        let mut off = 0.0;
        let output = amp.autocast(batch(), |x| {
            off = f32::from(u8::from(is_half(&x)));
            m.forward(x, identity)
        });
        loss(output) + off
    });
    says(&loss_alone, ["and the loss amplifies it"]);
    loss_alone.save(folder.path()).unwrap();
    assert!(!folder.path().join("reproduce.json").exists());
    // A folder that cannot be made is named.
    let failed = loss_alone.save(folder.path().join("audit.html/folder"));
    assert!(matches!(failed, Err(ReportError::File { path, .. }) if path.ends_with("folder")));
}

/// NaN in the data: no run is right, and no norm is zero.
#[test]
fn what_is_not_finite_in_f32_is_not_shown_as_right() {
    let audit = in_the_data(f32::NAN);
    let text = audit.to_string();
    let is_right = text.contains("right") || text.contains("0.00e0");
    assert!(!is_right, "{text}");
    let (_folder, page, json) = saved(&audit, "audit.json");
    assert_eq!(json["runs"][0]["is_right"], false);
    assert!(json["parameters"][0]["norm"].is_null());
    says(&page, ["<td>inf / NaN</td>"]);
    assert!(!page.contains(">right<"), "{page}");
}
