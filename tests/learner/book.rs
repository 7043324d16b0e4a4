//! The marks in the program of the book, which no compiler reads.

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

/// A line without what marks it, and whether it is marked.
fn unmarked(line: &str) -> (&str, bool) {
    let (code, mark) = line.rsplit_once("//").unwrap_or((line, ""));
    match mark.trim() {
        "new" | "changed" => (code.trim_end(), true),
        _ => (line, false),
    }
}

/// Both programs are run as documentation tests.
#[test]
fn the_program_in_the_book_marks_what_is_not_plain_burn() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(here.join(path)).unwrap();
    let (chapter, programs) = (read("../../docs/src/learner.md"), read("programs.md"));
    let plain = block_with(&programs, "rust", "Learner::new(model, AdamWConfig");
    let scaled = block_with(&chapter, "rust", "amp.launch(training, model, AdamWConfig");
    let lines: Vec<_> = scaled.lines().map(unmarked).collect();

    // Lines without a mark are plain Burn, in its order.
    let mut old = plain.lines();
    for (line, _) in lines.iter().filter(|(_, is_marked)| !is_marked) {
        assert!(
            old.any(|old| old == *line),
            "not in the plain program: {line}"
        );
    }
    let is_plain = |line: &str| plain.lines().any(|old| old == line);
    for (line, _) in lines.iter().filter(|(_, is_marked)| *is_marked) {
        assert!(!is_plain(line), "in the plain program too: {line}");
    }

    // No line of the plain program is gone, except those that have changed, and the learner, which `launch` makes, with an empty line.
    let count = |mark: &str| scaled.lines().filter(|line| line.ends_with(mark)).count();
    let (new, changed) = (count("// new"), count("// changed"));
    assert_eq!(scaled.lines().count() - new, plain.lines().count() - 2);
    assert!(new <= 2 && changed <= 3, "{new} new, {changed} changed");
}
