//! Programs that must not compile, and what the compiler says; links of the pages.

mod links;

/// That they do not is a documentation test, too. It takes a build of all of Burn to see what the compiler says.
#[test]
#[ignore = "slow"]
fn sweep_what_the_compiler_says_of_mistakes() {
    trybuild::TestCases::new().compile_fail("compile/*_mistake.rs");
}
