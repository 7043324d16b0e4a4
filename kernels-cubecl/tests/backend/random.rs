//! Pseudorandom bits, and random inputs of tests.

use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestRunner},
};

/// S. Vigna, "splitmix64".
pub struct Bits(pub u64);

impl Bits {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Checks so many inputs.
pub fn check_random<S: Strategy>(cases: u32, inputs: S, check: impl Fn(S::Value)) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let checked = TestRunner::new(config).run(&inputs, |input| {
        check(input);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
}
