//! Gradients that came to the border and that nobody has tested: a program may step with another optimizer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Gradients that come to scopes before a warning, where there was never an optimizer that could test them.
const WITHOUT_OPTIMIZER: u64 = 16;
/// Changes of parameters before a warning, where there is one and it has tested none. Passes between may be of one window, however many.
const WITHOUT_TEST: u64 = 128;
/// The same, where some were tested: another optimizer may step meanwhile, as in meta-learning.
const AFTER_TESTS: u64 = 1024;

/// A count of the gradients that have come since the last test.
#[derive(Debug, Default)]
pub(super) struct Untested {
    /// Set once there was an optimizer.
    is_expected: AtomicBool,
    /// The number of the last test that was met; 0 before the first.
    test: AtomicU64,
    /// Gradients that came to scopes.
    arrivals: AtomicU64,
    /// Counts how often parameters have changed.
    changes: AtomicU64,
    /// The newest output of a scope that gradients came to, by its number among all tensors that require gradients.
    output: AtomicU64,
    /// The same, when parameters had changed.
    output_then: AtomicU64,
    /// Set once it was warned of.
    warned: AtomicBool,
}

impl Untested {
    /// There is an optimizer.
    pub(super) fn expect_test(&self) {
        self.is_expected.store(true, Relaxed);
    }

    /// Gradients were tested, or wait in a window for their test.
    pub(super) fn end(&self) {
        self.arrivals.store(0, Relaxed);
        self.changes.store(0, Relaxed);
    }

    /// Counts a gradient that came to a scope with this output, after the test of this number. Returns how many came, once they are too many.
    pub(super) fn add_arrival(&self, output: u64, test: u64) -> Option<u64> {
        self.output.fetch_max(output, Relaxed);
        if self.test.swap(test, Relaxed) != test {
            self.end();
        }
        let arrivals = self.arrivals.fetch_add(1, Relaxed) + 1;
        let are_many = match (self.is_expected.load(Relaxed), test) {
            (false, _) => arrivals >= WITHOUT_OPTIMIZER,
            (true, 0) => self.changes.load(Relaxed) > WITHOUT_TEST,
            (true, _) => self.changes.load(Relaxed) > AFTER_TESTS,
        };
        (are_many && !self.warned.swap(true, Relaxed)).then_some(arrivals)
    }

    /// A gradient came to a parameter: one that is newer than an output was changed after it.
    pub(super) fn add_parameter(&self, parameter: u64) {
        if parameter > self.output_then.load(Relaxed) {
            self.changes.fetch_add(1, Relaxed);
            self.output_then.store(self.output.load(Relaxed), Relaxed);
        }
    }
}
