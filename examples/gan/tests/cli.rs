//! The program as a user runs it.

use std::process::{Command, Output};

fn gan(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gan"));
    command.args(args).output().unwrap()
}

fn table(args: &[&str]) -> Vec<Vec<String>> {
    let output = gan(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (table, drawing) = text.split_once("\n\n").unwrap();
    assert_eq!(drawing.lines().count(), 8, "{text}");
    let words = |line: &str| line.split_whitespace().map(String::from).collect();
    table.lines().skip(1).map(words).collect()
}

#[test]
fn all_three_runs_learn() {
    let rows = table(&["--steps", "120"]);
    let names: Vec<String> = rows.iter().map(|row| row[..2].join(" ")).collect();
    assert_eq!(
        names,
        ["f32, alternating", "f16, alternating", "f16, simultaneous"]
    );
    for row in &rows {
        let number = |index: usize| row[index].parse::<f32>().unwrap();
        assert!(number(3) < 0.8 * number(2), "{row:?}");
        assert!(number(4).is_finite() && number(5).is_finite(), "{row:?}");
    }
    // The f32 run does not scale; the others do, and have grown.
    assert_eq!(rows[0][7], "2^0");
    assert!(rows[1..].iter().all(|row| row[7] != "2^0"));
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let rows = table(&["--steps", "10", "--seed", "3"]);
    assert_eq!(table(&["--steps", "10", "--seed", "3"]), rows);
    assert_ne!(table(&["--steps", "10", "--seed", "4"]), rows);
}

#[test]
fn wrong_options_are_errors() {
    for args in [&["--steps", "0"][..], &["--seed", "x"], &["--what"]] {
        let output = gan(args);
        assert!(!output.status.success());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
}
