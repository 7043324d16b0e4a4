//! The list of all topics, so that every system runs the same ones.

/// Tests of every topic for the system that an expression gives.
macro_rules! suite {
    ($system:expr) => {
        suite! { $system;
            edges: every_dtype, at_the_edge, after_rounding;
            histogram: edges;
            layouts: views, steps_and_empties, one_memory_twice;
            lists: empty_list, empty_tensors, random_lists;
            ownership: other_views_are_kept, held_products_are_kept, what_was_read_is_kept;
            ranges: squares_out_of_range, doubles_out_of_range;
            repeated: same_bits;
            shapes: many_dimensions, lengths, chunk_boundaries;
            sizes: zeros_beyond_24_bits, non_finite_beyond_24_bits;
            special: every_dtype, all_halves;
            sums: mixed_magnitudes, one_large_then_small;
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
