//! Trains a network on handwritten digits.
fn main() {}
