//! Takes the README's program out of it, for a test that runs it.

use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=../README.md");
    let readme = fs::read_to_string("../README.md").expect("the README is there");
    let blocks = readme.split("```");
    let mut programs = blocks.filter_map(|block| block.strip_prefix("rust,no_run\n"));
    let program = programs.next().expect("the README has a program");
    let folder = env::var("OUT_DIR").expect("cargo gives one");
    fs::write(folder + "/readme.rs", program).expect("it can be written to");
}
