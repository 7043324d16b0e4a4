//! Views of a plane: values that do not lie in order, or are a part of their memory, or repeat it.

use super::*;

/// Of planes of at least 9 rows and 41 columns.
pub fn planes() -> [fn(Tensor<2>) -> Tensor<2>; 10] {
    [
        |plane| plane.transpose(),
        |plane| plane.slice(s![3..8, 7..40]),
        |plane| plane.slice(s![3..8, 7..40]).transpose(),
        |plane| plane.slice(s![0..5, 0..]),
        |plane| plane.slice(s![5.., 0..]),
        |plane| plane.flip([0]),
        |plane| plane.flip([1]),
        |plane| plane.flip([0, 1]).transpose(),
        |plane| plane.slice(s![5..6, 0..]).expand([9, -1]),
        |plane| plane.slice(s![0.., 13..14]).transpose().expand([9, -1]),
    ]
}
