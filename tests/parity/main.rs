//! Parity with the reference traces.
