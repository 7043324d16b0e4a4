//! A page as a browser shows it. Needs Chromium, which `.ci/full` installs.

use burn_amp_report::report;
use std::{fs, path::Path, process::Command};

use crate::two_epochs;

/// No window, and nothing but the page.
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
    --disable-background-networking --disable-component-update --window-size=1160,1600";

fn chromium(page: &Path, arguments: &[&str]) -> std::process::Output {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new("chromium");
    command.args(FLAGS.split(' ')).args(arguments);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("file://{}", page.display()));
    let output = command.output().expect("chromium is installed");
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
#[ignore = "needs Chromium: `.ci/full` installs it and runs this"]
fn a_browser_draws_the_charts_and_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    report(&[two_epochs(folder.path())], &page).unwrap();

    let output = chromium(&page, &["--dump-dom"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    // Read into elements and written out again: a page that is broken comes back with others.
    let file = fs::read_to_string(&page).unwrap();
    for element in ["<svg", "<polyline", "<tr>", "<td", "<h2>"] {
        let count = |page: &str| page.matches(element).count();
        assert_eq!(count(&shown), count(&file), "{element}");
    }
    assert!(shown.contains("Train Loss"));

    let picture = folder.path().join("report.png");
    chromium(&page, &[&format!("--screenshot={}", picture.display())]);
    let bytes = fs::read(&picture).unwrap();
    assert_eq!(&bytes[1..4], b"PNG");
    let size = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((size(16), size(20)), (1160, 1600));
    // A white page is a few kilobytes.
    assert!(bytes.len() > 20_000, "{} bytes", bytes.len());
}
