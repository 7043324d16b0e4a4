//! The marks in the program of the book, which no compiler reads.

use std::{fs, path::Path};

/// The only program that contains `text`, as readers see it: without the lines that the book hides.
fn program_with<'a>(page: &'a str, text: &str) -> Vec<&'a str> {
    let is_it = |block: &&str| block.starts_with("rust\n") && block.contains(text);
    let blocks: Vec<_> = page.split("```").filter(is_it).collect();
    assert_eq!(blocks.len(), 1, "programs with {text}");
    let shown = blocks[0].lines().skip(1);
    (shown.filter(|line| !line.trim_start().starts_with("# "))).collect()
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
    let plain = program_with(&programs, "Learner::new(model, AdamWConfig");
    let scaled = program_with(&chapter, "amp.launch(training, model, AdamWConfig");

    // Lines without a mark are plain Burn, in its order; others are not in it.
    let mut old = plain.iter();
    for (line, is_marked) in scaled.iter().map(|line| unmarked(line)) {
        let is_plain = match is_marked {
            true => plain.contains(&line),
            false => old.any(|old| *old == line),
        };
        assert_eq!(is_plain, !is_marked, "{line}");
    }

    // No line of the plain program is gone, except those that have changed, and the learner, which `launch` makes, with an empty line.
    let count = |mark: &str| scaled.iter().filter(|line| line.ends_with(mark)).count();
    let (new, changed) = (count("// new"), count("// changed"));
    assert_eq!(scaled.len() - new, plain.len() - 2);
    assert!(new <= 2 && changed <= 3, "{new} new, {changed} changed");
}
