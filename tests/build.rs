//! Takes the README's program out of it, for a test that runs it.

use std::{env, fs, path::Path};

fn main() {
    let readme = Path::new("../README.md");
    println!("cargo::rerun-if-changed={}", readme.display());
    let readme = fs::read_to_string(readme).expect("the README is there");
    let program = readme.split_once("```rust,no_run\n");
    let program = program.and_then(|(_, rest)| rest.split_once("```"));
    let (program, _) = program.expect("the README has a program");
    let folder = env::var("OUT_DIR").expect("cargo gives one");
    fs::write(Path::new(&folder).join("readme.rs"), program).expect("it can be written to");
}
