//! The report of runs, by the command.

mod browser;

use burn_amp_report::{ReportError, report};
use std::path::{Path, PathBuf};
use std::{fs, process::Command};

/// As Burn's `Learner` writes it, with the summary of the epoch at the end.
fn learner<const N: usize>(folder: &Path, losses: &[[f64; N]], skips: &[[f64; N]]) {
    for (epoch, (losses, skips)) in losses.iter().zip(skips).enumerate() {
        let [train, valid] = ["train", "valid"].map(|split| {
            let folder = folder.join(format!("{split}/epoch-{}", epoch + 1));
            fs::create_dir_all(&folder).unwrap();
            folder
        });
        let lines = |values: &[f64]| {
            let lines: String = values.iter().map(|value| format!("{value},1\n")).collect();
            format!("{lines}0.123,final\n")
        };
        fs::write(train.join("Loss.log"), lines(losses)).unwrap();
        fs::write(train.join("Skipped_Steps.log"), lines(skips)).unwrap();
        fs::write(train.join("Loss_Scale.log"), "65536\n65536\n").unwrap();
        fs::write(train.join("Learning_Rate.log"), "0.1,1\n0.2,1\n").unwrap();
        fs::write(valid.join("Loss.log"), "1.5,3\n2.5,1\n1.75,final\n").unwrap();
    }
}

/// Two epochs of two steps, of which one is skipped.
fn two_epochs(folder: &Path) -> PathBuf {
    let run = folder.join("f16");
    let (losses, skips) = ([[2.0, 1.0], [0.5, 0.25]], [[0.0, 100.0], [0.0; 2]]);
    learner(&run, &losses, &skips);
    run
}

/// The command's page of these folders.
fn page(arguments: &[&Path], page: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burn-amp-report"));
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(page).unwrap()
}

#[test]
fn a_page_shows_what_a_learner_has_logged() {
    let folder = tempfile::tempdir().unwrap();
    let run = two_epochs(folder.path());
    let page = page(&[&run], &run.join("report.html"));
    let row = "<td>f16</td><td>4</td><td>0.2500</td><td>1.7500</td><td>1</td><td>2^16</td>";
    assert!(page.contains(row), "{page}");
    assert!(page.contains("Train Learning Rate") && page.contains("Red lines"));
    assert!(!page.contains("without skips"));
}

#[test]
fn runs_stand_beside_each_other_and_those_without_skips_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (learned, recorded) = (folder.path().join("f32"), folder.path().join("f16"));
    learner(&learned, &[[2.0, 1.0]], &[[0.0; 2]]);
    fs::create_dir_all(&recorded).unwrap();
    let line = |step: u32, outcome: &str| {
        // No axis is that long.
        let far = if step == 1 { "1e308" } else { "-1e308" };
        format!(
            r#"{{"step":{step},"outcome":"{outcome}","loss_scale":65536.0,"norm":1.0,"max_abs":1.0,"zero_share":0.5,"seconds":0.25,"notes":{{"loss":3.0,"far":{far}}},"exponents":[[-3,5],[-2,7]]}}"#
        )
    };
    // The third line was cut off.
    let (one, two, three) = (line(1, "stepped"), line(2, "skipped"), line(3, ""));
    let lines = [&one, &two, &three[..15]].join("\n");
    fs::write(recorded.join("steps.jsonl"), lines).unwrap();
    let both = folder.path().join("both.html");
    // As `runs/*` finds it: a page of before.
    fs::write(&both, "").unwrap();
    let paths: [&Path; 5] = [&both, &learned, &recorded, "--page".as_ref(), &both];
    let page = page(&paths, &both);
    assert!(page.contains("Runs without skips: f32."));
    assert!(page.contains("<td>f16</td><td>2</td><td>3.0000</td><td>-</td><td>at least 1</td><td>2^16</td><td>50.00 %</td><td>250.0</td>"), "{page}");
    assert!(page.contains("f16: share of gradient values by exponent"));
    // Units are on the axes, the first run is dashed, and the page shows through.
    let chart = |title: &str| {
        let mut charts = page.split("<svg").skip(1);
        charts.find(|chart| chart.contains(title)).unwrap()
    };
    let has_label = |title: &str, label: &str| chart(title).lines().any(|line| line == label);
    assert!(has_label("Zero Gradients", "50 %"), "{page}");
    assert!(has_label("Step Time, ms", "250 ms"), "{page}");
    let dashes = chart("Train Loss").matches(r##"stroke="#1F77B4""##).count();
    assert!(dashes > 10, "{dashes}");
    assert!(!page.contains("#FFFFFF") && !page.contains("#000000"));
}

/// They may be those of skips, and the others stay where they were.
#[test]
fn lines_that_cannot_be_read_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let [learned, recorded] = ["learned", "recorded"].map(|name| folder.path().join(name));
    learner(&learned, &[[4.0, 3.0, 2.0, 1.0]], &[[0.0; 4]]);
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
    let both = folder.path().join("both.html");
    let page = page(&[&learned, &recorded, "--page".as_ref(), &both], &both);
    assert!(!page.contains("without skips"));
    let file = "<code>train/epoch-1/Skipped_Steps.log</code>";
    for said in [
        &format!("learned: 1 line of {file} cannot be read. Skips may be among them."),
        "recorded: 2 steps in <code>steps.jsonl</code> cannot be read. Skips may be among them.",
    ] {
        assert!(page.contains(said), "{page}");
    }
    assert_eq!(page.matches("<td>at least 0</td>").count(), 2);
    assert!(!page.contains("Mode.log"));
}

#[test]
fn a_folder_without_a_run_is_an_error_and_leaves_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    fs::write(&page, "before").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_burn-amp-report"));
    let output = command.arg(folder.path()).output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("holds no run"), "{message}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");

    let missing = folder.path().join("nothing");
    let error = report(&[&missing], &page).unwrap_err();
    assert!(matches!(error, ReportError::File { path, .. } if path.ends_with("nothing")));
}
