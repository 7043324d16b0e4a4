//! Programs that must not compile, and what the compiler says; the README's program; links of the pages.

pub mod links;

use std::{fs, path::Path};

/// That they do not is a documentation test, too. It takes a build of all of Burn to see what the compiler says.
#[test]
#[ignore = "slow"]
fn sweep_what_the_compiler_says_of_mistakes() {
    let programs = trybuild::TestCases::new();
    programs.compile_fail("compile/*_mistake.rs");
    // The README's saves files: it runs in the folder of the build.
    let readme = include_str!("../../README.md");
    let (_, program) = readme.split_once("```rust,no_run\n").unwrap();
    let (program, _) = program.split_once("```").unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme.rs");
    fs::write(&file, program).unwrap();
    programs.pass(file);
}
