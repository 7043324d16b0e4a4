//! How many lines of a program change to go from f32 to half precision, counted in the files.

use std::fs;

/// A loop with one model, one more model with its optimizer, the Learner.
const LOOP: [usize; 2] = [4, 3];
const LOOP_OF_TWO: [usize; 2] = [8, 7];
const LEARNER: [usize; 2] = [7, 4];

/// Programs, and the lines that may be added to and removed from one.
const BUDGETS: [(&str, [usize; 2]); 5] = [
    ("cnn", LEARNER),
    ("transformer", LEARNER),
    ("regression", LOOP),
    ("wgan", LOOP_OF_TWO),
    ("gpt", LOOP),
];

/// The diff between the plain version of a program, a file or a folder of them, and that in half precision.
fn diff_of(name: &str) -> Vec<String> {
    let folder = format!("{}/src/{name}", env!("CARGO_MANIFEST_DIR"));
    let read = |path: String| fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let files = match fs::read_dir(format!("{folder}/plain")) {
        Err(_) => vec![String::new()],
        Ok(files) => {
            let name = |file: fs::DirEntry| format!("/{}", file.file_name().display());
            files.map(|file| name(file.unwrap())).collect()
        }
    };
    let mut files: Vec<String> = files
        .into_iter()
        .map(|file| file.replace(".rs", ""))
        .collect();
    files.sort();
    let version = |version: &str, file: &String| read(format!("{folder}/{version}{file}.rs"));
    let diffs = files
        .iter()
        .map(|file| diff(&version("plain", file), &version("half", file)));
    diffs.flatten().collect()
}

/// A minimal line diff: every line of both files, with `-`, `+` or a space before it.
fn diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // Lines that the rests from (i, j) have in common, at most.
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (i, j) in (0..old.len())
        .rev()
        .flat_map(|i| (0..new.len()).rev().map(move |j| (i, j)))
    {
        common[i][j] = match old[i] == new[j] {
            true => common[i + 1][j + 1] + 1,
            false => common[i + 1][j].max(common[i][j + 1]),
        };
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        let more = (i < old.len(), j < new.len());
        if more == (true, true) && old[i] == new[j] {
            lines.push(format!(" {}", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if more.0 && (!more.1 || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("-{}", old[i]));
            i += 1;
        } else {
            lines.push(format!("+{}", new[j]));
            j += 1;
        }
    }
    lines
}

/// Lines added and removed.
fn count(diff: &[String]) -> [usize; 2] {
    ['+', '-'].map(|sign| diff.iter().filter(|line| line.starts_with(sign)).count())
}

/// The lines that change.
fn changes(diff: &[String]) -> Vec<&str> {
    let changed = diff.iter().filter(|line| !line.starts_with(' '));
    changed.map(String::as_str).collect()
}

/// The diffs that a page shows, one for each of these programs, are those of the files, whole.
fn shows(page: &str, programs: &[&str]) {
    let blocks = page.split("```diff\n").skip(1);
    let shown: Vec<&str> = blocks.flat_map(|block| block.split("```").next()).collect();
    assert_eq!(shown.len(), programs.len());
    for (shown, name) in shown.iter().zip(programs) {
        let diff = diff_of(name);
        let lines = shown.lines().filter(|line| !line.starts_with("@@"));
        let (changed, context): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.starts_with(['+', '-']));
        assert_eq!(changed, changes(&diff), "{name}");
        for line in context {
            assert!(diff.iter().any(|other| other == line), "{name}: {line}");
        }
    }
}

#[test]
fn each_program_keeps_its_budget_and_the_pages_are_right() {
    let readme = include_str!("../README.md");
    shows(readme, &["regression", "cnn"]);
    shows(include_str!("../../../README.md"), &["regression"]);
    for (name, budget) in BUDGETS {
        let diff = diff_of(name);
        let [added, removed] = count(&diff);
        let kept = added > 0 && added <= budget[0] && removed <= budget[1];
        assert!(
            kept,
            "{name}: at most {budget:?}:\n{}",
            changes(&diff).join("\n")
        );
        let row = format!("| [{name}](src/{name}) |");
        let row = readme.lines().find(|line| line.starts_with(&row)).unwrap();
        assert!(row.ends_with(&format!("| {added} / {removed} |")), "{row}");
    }
}
