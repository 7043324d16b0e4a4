//! The same input gives the same bits, however the work is shared.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::{TensorList, TensorStatus};

use crate::system::{System, list_of};
use crate::{case::assert_same_bits, create::random, device::dtypes};

/// Many chunks of one large tensor beside small ones.
fn list() -> TensorList {
    let part: Tensor<1> = random(DType::F32, 140, [300_001]);
    list_of([
        Tensor::cat(vec![part.clone(); 4], 0),
        part,
        // The narrowest that there is.
        random(dtypes()[0], 141, [270_000]),
        random(DType::F32, 142, [5]),
    ])
}

fn rows(system: &System, list: &TensorList) -> Vec<TensorStatus> {
    let mut rows = system.inspect(list.clone()).read();
    rows.extend(system.unscale(list.clone(), 0.3).1.read());
    rows
}

/// Again, by one thread, and by more threads than there are processors.
pub fn same_bits(system: &System) {
    let list = list();
    let first = rows(system, &list);
    for threads in [1, 2, 7, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let again = pool.expect("threads").install(|| rows(system, &list));
        assert_eq!(again.len(), first.len());
        let both = again.iter().zip(&first);
        both.for_each(|(again, first)| assert_same_bits(again, first));
    }
}
