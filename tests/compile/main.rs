//! Programs that must not compile, and what the compiler says; the README's program; links of the pages.

pub mod links;

use burn_amp_tests::{child, child_folder};

mod readme {
    include!(concat!(env!("OUT_DIR"), "/readme.rs"));

    pub fn run() {
        main().unwrap();
    }
}

/// It saves files, so it runs in a folder of its own.
#[test]
fn the_readmes_program_trains_and_saves() {
    if let Some(folder) = child_folder() {
        std::env::set_current_dir(folder).unwrap();
        return readme::run();
    }
    let folder = tempfile::tempdir().unwrap();
    let name = concat!(module_path!(), "::the_readmes_program_trains_and_saves");
    let output = child(name, folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for file in ["model.bpk", "optim.bpk"] {
        assert!(folder.path().join(file).is_file(), "no {file}");
    }
}

/// That they do not is a documentation test, too. It takes a build of all of Burn to see what the compiler says.
#[test]
#[ignore = "slow"]
fn sweep_what_the_compiler_says_of_mistakes() {
    let programs = trybuild::TestCases::new();
    programs.compile_fail("compile/*_mistake.rs");
}
