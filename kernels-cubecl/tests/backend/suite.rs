//! The list of all topics, so that every system runs the same ones.

/// Tests of every topic for the system that an expression gives.
macro_rules! suite {
    ($system:expr) => {
        suite! { $system;
            layouts: random_lists, dimensions, empty_lists;
            ownership: what_was_read, products;
            values: special, all_halves, magnitudes, edges;
            large: counts_beyond_24_bits, sums_as_in_f64, same_bits;
        }
    };
    ($system:expr; $($topic:ident: $($test:ident),+;)+) => {
        $(mod $topic {
            $(#[test]
            fn $test() {
                crate::$topic::$test(&$system);
            })+
        })+
    };
}
