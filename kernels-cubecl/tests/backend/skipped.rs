//! Tests that have nothing to do on some device say so, all in one way: these lines are counted.

/// What the running test says instead.
pub fn skipped(why: &str) {
    let test = std::thread::current();
    println!("skipped: {}: {why}", test.name().unwrap_or_default());
}
