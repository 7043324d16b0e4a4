//! The program as a user runs it.

#[path = "../../digits/tests/program/mod.rs"]
mod program;

use std::process::Command;

fn gan(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gan"));
    command.args(args);
    command
}

fn table(args: &[&str]) -> Vec<Vec<String>> {
    let text = program::prints(&mut gan(args));
    let (table, drawing) = text.split_once("\n\n").unwrap();
    assert_eq!(drawing.lines().count(), 8, "{text}");
    let words = |line: &str| line.split_whitespace().map(String::from).collect();
    table.lines().skip(1).map(words).collect()
}

#[test]
fn all_three_runs_learn() {
    let rows = table(&["--steps", "120"]);
    let names = rows.iter().map(|row| row[..2].join(" "));
    assert!(names.eq(["f32, alternating", "f16, alternating", "f16, simultaneous"]));
    for row in &rows {
        let number = |index: usize| row[index].parse::<f32>().unwrap();
        assert!(number(3) < 0.8 * number(2), "{row:?}");
        assert!(number(4).is_finite() && number(5).is_finite(), "{row:?}");
    }
    // The f32 run does not scale; the others do, and have grown.
    assert!(
        rows.iter()
            .map(|row| row[7] != "2^0")
            .eq([false, true, true])
    );
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let [first, again, other] =
        ["3", "3", "4"].map(|seed| table(&["--steps", "10", "--seed", seed]));
    assert!(first == again && first != other);
    program::refuses(
        gan,
        &[
            (&["--steps", "0"], ""),
            (&["--seed", "x"], ""),
            (&["--what"], ""),
        ],
    );
}
