//! The diff in the book, which no compiler reads.

use crate::support::{block_with, chapter};

/// From the plain program to the one with loss scaling, both of which are run as documentation tests.
#[test]
fn the_diff_in_the_book_turns_one_program_into_the_other() {
    let chapter = chapter();
    let plain = block_with(&chapter, "rust", "Learner::new(model, AdamWConfig");
    let scaled = block_with(&chapter, "rust", "amp.learner(model, AdamWConfig");
    let diff = block_with(&chapter, "diff", "amp.learner");
    assert_eq!(patch(&plain, &diff), scaled);
    let count = |sign: &str| {
        diff.lines()
            .skip(2)
            .filter(|line| line.starts_with(sign))
            .count()
    };
    assert!(count("+") <= 8 && count("-") <= 4, "{diff}");
}

/// As the program `patch`, without its tolerance.
fn patch(old: &str, diff: &str) -> String {
    let mut old = (1..).zip(old.lines()).peekable();
    let mut new = Vec::new();
    for line in diff.lines().skip_while(|line| !line.starts_with("@@")) {
        if let Some(range) = line.strip_prefix("@@ -") {
            let start: usize = range.split(',').next().unwrap().parse().unwrap();
            while let Some((_, text)) = old.next_if(|(number, _)| *number < start) {
                new.push(text);
            }
            continue;
        }
        // An editor may have taken the blank from an empty line of context.
        let (sign, text) = line.split_at_checked(1).unwrap_or((" ", ""));
        if sign != "+" {
            assert_eq!(old.next().unwrap().1, text, "in the plain program");
        }
        if sign != "-" {
            new.push(text);
        }
    }
    new.extend(old.map(|(_, line)| line));
    new.iter().map(|line| format!("{line}\n")).collect()
}
