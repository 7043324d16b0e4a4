//! The report of runs, by the command.

mod browser;

use burn_amp_report::{ReportError, report};
use burn_amp_tests::says;
use std::path::{Path, PathBuf};
use std::{fs, process::Command};

/// As Burn's `Learner` writes it: each epoch's losses and skips, with the summary of the epoch at the end.
fn learner<const N: usize>(run: &Path, epochs: &[([f64; N], [f64; N])]) {
    for (epoch, (losses, skips)) in epochs.iter().enumerate() {
        let log = |split: &str, name: &str, text: &str| {
            let folder = run.join(format!("{split}/epoch-{}", epoch + 1));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), text).unwrap();
        };
        let lines = |values: &[f64]| {
            let lines: String = values.iter().map(|value| format!("{value},1\n")).collect();
            format!("{lines}0.123,final\n")
        };
        log("train", "Loss.log", &lines(losses));
        log("train", "Skipped_Steps.log", &lines(skips));
        log("train", "Loss_Scale.log", "65536\n65536\n");
        log("train", "Learning_Rate.log", "0.1,1\n0.2,1\n");
        log("valid", "Loss.log", "1.5,3\n2.5,1\n1.75,final\n");
    }
}

/// Two epochs of two steps, of which one is skipped.
fn two_epochs(folder: &Path) -> PathBuf {
    let run = folder.join("f16");
    learner(&run, &[([2.0, 1.0], [0.0, 100.0]), ([0.5, 0.25], [0.0; 2])]);
    run
}

fn command(arguments: &[&Path]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burn-amp-report"));
    command.args(arguments).output().unwrap()
}

/// The command's page of these folders.
fn page(arguments: &[&Path], page: &Path) -> String {
    let output = command(arguments);
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(page).unwrap()
}

#[test]
fn a_page_shows_what_a_learner_has_logged() {
    let folder = tempfile::tempdir().unwrap();
    let run = two_epochs(folder.path());
    let page = page(&[&run], &run.join("report.html"));
    let row = "<td>f16</td><td>4</td><td>0.2500</td><td>1.7500</td><td>1</td><td>2^16</td>";
    says(&page, [row, "Train Learning Rate", "Red lines"]);
    assert!(!page.contains("without skips"));
}

#[test]
fn runs_stand_beside_each_other_and_those_without_skips_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [learned, recorded, both] =
        ["f32", "f16", "both.html"].map(|name| folder.path().join(name));
    learner(&learned, &[([2.0, 1.0], [0.0; 2])]);
    fs::create_dir_all(&recorded).unwrap();
    let line = |step: u32, outcome: &str| {
        // No axis is that long.
        let far = if step == 1 { "1e308" } else { "-1e308" };
        format!(
            r#"{{"step":{step},"outcome":"{outcome}","loss_scale":65536.0,"norm":1.0,"max_abs":1.0,"zero_share":0.5,"seconds":0.25,"notes":{{"loss":3.0,"far":{far}}},"exponents":[[-3,5],[-2,7]]}}"#
        )
    };
    // The third line was cut off.
    let lines = [line(1, "stepped"), line(2, "skipped"), line(3, "")].join("\n");
    fs::write(recorded.join("steps.jsonl"), &lines[..lines.len() - 100]).unwrap();
    // As `runs/*` finds it: a page of before.
    fs::write(&both, "").unwrap();
    let paths: [&Path; 5] = [&both, &learned, &recorded, "--page".as_ref(), &both];
    let page = page(&paths, &both);
    let row = "<td>f16</td><td>2</td><td>3.0000</td><td>-</td><td>at least 1</td><td>2^16</td><td>50.00 %</td><td>250.0</td>";
    let heat_map = "f16: share of gradient values by exponent";
    says(&page, ["Runs without skips: f32.", row, heat_map]);
    // Units are on the axes, the first run is dashed, and the page shows through.
    let chart = |title: &str| {
        let mut charts = page.split("<svg").skip(1);
        charts.find(|chart| chart.contains(title)).unwrap()
    };
    for (title, label) in [("Zero Gradients", "50 %"), ("Step Time, ms", "250 ms")] {
        assert!(chart(title).lines().any(|line| line == label), "{page}");
    }
    let dashes = chart("Train Loss").matches(r##"stroke="#1F77B4""##).count();
    assert!(dashes > 10, "{dashes}");
    assert!(!page.contains("#FFFFFF") && !page.contains("#000000"));
}

/// They may be those of skips, and the others stay where they were.
#[test]
fn lines_that_cannot_be_read_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let [learned, recorded, both] =
        ["learned", "recorded", "both.html"].map(|name| folder.path().join(name));
    learner(&learned, &[([4.0, 3.0, 2.0, 1.0], [0.0; 4])]);
    let log = |name: &str, text: &str| {
        fs::write(learned.join("train/epoch-1").join(name), text).unwrap();
    };
    log("Skipped_Steps.log", "0,1\n0,1\n\0\0\n0,1\n");
    log("Mode.log", "fast\nslow\n");
    fs::create_dir_all(&recorded).unwrap();
    let step = |step| format!(r#"{{"step":{step},"outcome":"stepped","loss_scale":8.0}}"#);
    // The disk was full for a moment: the third line was glued to half of the second.
    let [one, two, three, four] = [1, 2, 3, 4].map(step);
    let lines = format!("{one}\n{}{three}\n{four}\n", &two[..20]);
    fs::write(recorded.join("steps.jsonl"), lines).unwrap();
    let page = page(&[&learned, &recorded, "--page".as_ref(), &both], &both);
    for lines in [
        "learned: 1 line of <code>train/epoch-1/Skipped_Steps.log</code>",
        "recorded: 2 steps in <code>steps.jsonl</code>",
    ] {
        let said = format!("{lines} cannot be read. Skips may be among them.");
        says(&page, [&*said]);
    }
    assert_eq!(page.matches("<td>at least 0</td>").count(), 2);
    assert!(!page.contains("Mode.log") && !page.contains("without skips"));
}

#[test]
fn a_folder_without_a_run_is_an_error_and_leaves_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    fs::write(&page, "before").unwrap();
    let output = command(&[folder.path()]);
    assert!(!output.status.success());
    says(&String::from_utf8_lossy(&output.stderr), ["holds no run"]);
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");

    let missing = folder.path().join("nothing");
    let error = report(&[&missing], &page).unwrap_err();
    assert!(matches!(error, ReportError::File { path, .. } if path.ends_with("nothing")));
}
