//! The diff in the book, which no compiler reads.

use std::{fs, path::Path};

/// The only code block of a language that contains `text`, as readers see it: without the lines that the book hides.
fn block_with(chapter: &str, language: &str, text: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = chapter.split(&fence).skip(1);
    let blocks: Vec<_> = blocks
        .map(|block| block.split("```").next().unwrap())
        .filter(|block| block.contains(text))
        .collect();
    assert_eq!(blocks.len(), 1, "blocks of {language} with {text}");
    let shown = blocks[0].lines();
    let shown = shown.filter(|line| !line.trim_start().starts_with("# "));
    shown.map(|line| format!("{line}\n")).collect()
}

/// From the plain program to the one with loss scaling, both of which are run as documentation tests.
#[test]
fn the_diff_in_the_book_turns_one_program_into_the_other() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(here.join(path)).unwrap();
    let (chapter, programs) = (read("../../docs/src/learner.md"), read("programs.md"));
    let plain = block_with(&programs, "rust", "Learner::new(model, AdamWConfig");
    let scaled = block_with(&chapter, "rust", "amp.learner(model, AdamWConfig");
    let diff = block_with(&chapter, "diff", "amp.learner");
    assert_eq!(patch(&plain, &diff), scaled);
    let count = |sign: &str| {
        let lines = diff.lines().skip(2);
        lines.filter(|line| line.starts_with(sign)).count()
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
