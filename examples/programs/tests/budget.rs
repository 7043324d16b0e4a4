//! How many lines of a program change to go from f32 to half precision, counted in the files.

/// The two versions of a program: their files, in pairs.
struct Program {
    name: &'static str,
    files: &'static [[&'static str; 2]],
    /// Lines that may be added, and removed.
    budget: [usize; 2],
}

macro_rules! pair {
    ($plain:literal, $half:literal) => {
        [
            include_str!(concat!("../src/", $plain)),
            include_str!(concat!("../src/", $half)),
        ]
    };
}

/// A loop with one model, one more model with its optimizer, the Learner.
const LOOP: [usize; 2] = [4, 3];
const LOOP_OF_TWO: [usize; 2] = [8, 7];
const LEARNER: [usize; 2] = [7, 4];

const PROGRAMS: [Program; 5] = [
    Program {
        name: "cnn",
        files: &[
            pair!("cnn/plain/model.rs", "cnn/half/model.rs"),
            pair!("cnn/plain/training.rs", "cnn/half/training.rs"),
        ],
        budget: LEARNER,
    },
    Program {
        name: "transformer",
        files: &[
            pair!("transformer/plain/model.rs", "transformer/half/model.rs"),
            pair!(
                "transformer/plain/training.rs",
                "transformer/half/training.rs"
            ),
        ],
        budget: LEARNER,
    },
    Program {
        name: "regression",
        files: &[pair!("regression/plain.rs", "regression/half.rs")],
        budget: LOOP,
    },
    Program {
        name: "wgan",
        files: &[pair!("wgan/plain.rs", "wgan/half.rs")],
        budget: LOOP_OF_TWO,
    },
    Program {
        name: "gpt",
        files: &[pair!("gpt/plain.rs", "gpt/half.rs")],
        budget: LOOP,
    },
];

impl Program {
    fn diff(&self) -> Vec<String> {
        let diffs = self.files.iter().map(|[plain, half]| diff(plain, half));
        diffs.flatten().collect()
    }
}

/// A minimal line diff: every line of both files, with `-`, `+` or a space before it.
fn diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    // Lines that the rests from (i, j) have in common, at most.
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(format!(" {}", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
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
    let count = |sign| diff.iter().filter(|line| line.starts_with(sign)).count();
    [count('+'), count('-')]
}

/// The lines that change.
fn changes(diff: &[String]) -> Vec<&str> {
    let changed = diff.iter().filter(|line| !line.starts_with(' '));
    changed.map(String::as_str).collect()
}

#[test]
fn the_diff_is_minimal() {
    assert_eq!(diff("a\nb\nc", "a\nc\nd"), [" a", "-b", " c", "+d"]);
    assert_eq!(count(&diff("", "a\na")), [2, 0]);
    assert_eq!(count(&diff("a\nb\nc\nd", "b\nx\nd\na")), [2, 2]);
}

#[test]
fn each_program_keeps_its_budget() {
    for program in PROGRAMS {
        let diff = program.diff();
        let [added, removed] = count(&diff);
        assert!(added > 0, "{}: the same twice", program.name);
        assert!(
            added <= program.budget[0] && removed <= program.budget[1],
            "{}: {added} lines added and {removed} removed, at most {:?}:\n{}",
            program.name,
            program.budget,
            changes(&diff).join("\n")
        );
    }
}

/// The diffs that a page shows, one for each of these programs, are those of the files, whole.
fn shows(page: &str, programs: &[&str]) {
    let blocks = page.split("```diff\n").skip(1);
    let shown: Vec<&str> = blocks.flat_map(|block| block.split("```").next()).collect();
    assert_eq!(shown.len(), programs.len());
    for (shown, name) in shown.iter().zip(programs) {
        let program = PROGRAMS.iter().find(|program| program.name == *name);
        let diff = program.unwrap().diff();
        let (changed, context): (Vec<_>, Vec<_>) = shown
            .lines()
            .filter(|line| !line.starts_with("@@"))
            .partition(|line| line.starts_with(['+', '-']));
        assert_eq!(changed, changes(&diff), "{name}");
        for line in context {
            assert!(diff.iter().any(|other| other == line), "{name}: {line}");
        }
    }
}

#[test]
fn the_pages_are_right() {
    let readme = include_str!("../README.md");
    shows(readme, &["regression", "cnn"]);
    shows(include_str!("../../../README.md"), &["regression"]);

    for program in PROGRAMS {
        let [added, removed] = count(&program.diff());
        let row = format!("| [{0}](src/{0}) |", program.name);
        let row = readme.lines().find(|line| line.starts_with(&row)).unwrap();
        assert!(row.ends_with(&format!("| {added} / {removed} |")), "{row}");
    }
}
