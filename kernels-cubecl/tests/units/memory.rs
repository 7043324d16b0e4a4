use super::*;

#[test]
fn memory_of_dropped_products_is_used_again_and_no_more_is_kept_than_a_list_took() {
    const BYTES: usize = SMALLEST + 4;
    let [first, second] = [take(BYTES), take(BYTES)];
    let [place, other] = [first.as_ptr(), second.as_ptr()];
    end_list();
    assert_eq!(first.len(), BYTES);

    drop(first);
    let third = take(BYTES);
    assert!(third.as_ptr() == place, "not used again");
    end_list();
    drop((second, third));
    assert_eq!(pool().words, BYTES.div_ceil(8), "the last list took one");

    let larger = take(2 * BYTES);
    assert!(larger.as_ptr() != place && larger.as_ptr() != other);
    end_list();
    assert_eq!(pool().words, 0, "what the next list does not take is freed");
    drop(larger);
    release_memory();
    assert_eq!(pool().words, 0);
}
