//! Programs that must not compile, and what the compiler says; links of the pages.

mod links;

#[test]
fn mistakes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("compile/*_mistake.rs");
}
