//! What an audit writes.

use burn_amp::{GradScalerConfig, MixedPrecision};
use std::{cell::Cell, fs};

use crate::network::{Network, audit_with, batch, device, loss, same};
use burn::{module::Module, tensor::DType};
use burn_amp_report::{ReportError, audit};

#[test]
fn a_healthy_step_takes_five_losses_and_leaves_no_trace() {
    let amp = MixedPrecision::f16();
    let model = Network::new(&device()).apply_reparameterization(amp.clone());
    let losses = Cell::new(0);
    let found = audit(&model, &amp, |m| {
        losses.set(losses.get() + 1);
        loss(amp.autocast(batch(), |x| m.forward(x, same)))
    })
    .unwrap();
    assert!(found.verdict().is_fine());
    assert_eq!(losses.get(), 5);
    assert_eq!(amp.loss_scale(), 65536.0);
    assert_eq!(amp.counters().steps(), 0);
}

#[test]
fn a_page_and_all_figures_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let one = GradScalerConfig::new().with_init_scale(1.0);
    let amp = MixedPrecision::f16().with_scaler(one).unwrap();
    let audit = audit_with(
        &amp,
        |x| burn::tensor::activation::sigmoid(x * 1e-2) * 1e-3,
        loss,
    );
    audit.save(folder.path()).unwrap();

    let page = fs::read_to_string(folder.path().join("audit.html")).unwrap();
    assert!(
        page.contains("<svg")
            && page.contains("first.weight")
            && page.contains("Raise the loss scale")
    );
    for outside in ["src=", "href=", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("audit.json")).unwrap())
            .unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let wrong = |x: burn::tensor::Tensor<2>| match x.dtype() {
        DType::F32 => x,
        _ => x.clone().detach() + (x.clone() - x.detach()) * 0.0,
    };
    audit_with(&MixedPrecision::f16(), wrong, loss)
        .save(folder.path())
        .unwrap();
    let text = fs::read_to_string(folder.path().join("reproduce.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> = json["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    // It begins between the gradient that comes to `between` and what leaves it.
    assert!(
        names.contains(&"gradient at probe first") && names.contains(&"gradient at probe between"),
        "{names:?}"
    );
    let lost = &json["tensors"][0];
    assert!(
        lost["values"]
            .as_array()
            .unwrap()
            .iter()
            .all(|value| value == 0.0)
    );
    assert!(
        lost["in_f32"]
            .as_array()
            .unwrap()
            .iter()
            .any(|value| value != 0.0)
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let audit = audit_with(&MixedPrecision::f16(), same, loss);
    let error = audit.save(file.path().join("folder")).unwrap_err();
    assert!(
        matches!(&error, ReportError::File { path, .. } if path.ends_with("folder")),
        "{error}"
    );
}
