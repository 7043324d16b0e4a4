use super::padding;

#[test]
fn only_rows_are_padded() {
    assert_eq!(padding(&[3, 5], &[8, 1]), Some((8, 5)));
    assert_eq!(padding(&[2, 3, 5], &[24, 8, 1]), Some((8, 5)));
    assert_eq!(padding(&[3, 5], &[5, 1]), None);
    assert_eq!(padding(&[2, 3, 5], &[32, 8, 1]), None);
    assert_eq!(padding(&[3, 5], &[1, 8]), None);
    assert_eq!(padding(&[3, 5], &[0, 1]), None);
    assert_eq!(padding(&[3, 0], &[8, 1]), None);
    assert_eq!(padding(&[5], &[1]), None);
}
