//! The chapter of the book on Burn's Learner.

use std::{fs, path::Path};

pub fn chapter() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/learner.md");
    fs::read_to_string(path).unwrap()
}

/// The only code block of a language that contains `text`, as readers see it: without the lines that the book hides.
pub fn block_with(chapter: &str, language: &str, text: &str) -> String {
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
