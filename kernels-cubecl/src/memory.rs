//! Memory of products, kept from step to step: pages fresh from the system cost several times the pass over them.
//!
//! What a product leaves when it is dropped is kept, up to as much as the last list with new products took. The next such
//! list takes what fits, and what it leaves is freed then. All of it is freed by [`release_memory`].

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use std::collections::BTreeMap;
use std::mem::{MaybeUninit, take as emptied};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Bytes of the smallest product that is kept: smaller ones are left to the allocator, which has pages for them.
pub(crate) const SMALLEST: usize = 1 << 12;

/// 64 bits each: aligned for all dtypes.
type Words = Vec<u64>;

#[derive(Default)]
struct Pool {
    /// Buffers by their lengths.
    free: BTreeMap<usize, Vec<Words>>,
    /// In `free`, at most `limit`.
    words: usize,
    limit: usize,
    /// Since the last list was done.
    taken: usize,
}

fn pool() -> MutexGuard<'static, Pool> {
    static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
    // No panic leaves it half done.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees the memory that Flex keeps for the next step's products.
///
/// [`unscale`](crate::unscale) on Flex writes products of f16 and bf16 gradients, and of any that somebody else holds, to
/// new memory. When they are dropped, their memory is kept for the next step's: as much as one list of products has, and
/// no longer than until a list of other sizes is unscaled. This frees it before, when training is over.
pub fn release_memory() {
    // Freed when others may take again.
    let _before = emptied(&mut *pool());
}

/// That many bytes, of any values.
pub(crate) fn take(bytes: usize) -> Bytes {
    let length = bytes.div_ceil(size_of::<u64>());
    let mut pool = pool();
    pool.taken += length;
    let kept = pool.free.get_mut(&length).and_then(Vec::pop);
    pool.words -= kept.as_ref().map_or(0, Vec::len);
    drop(pool);
    let product = Product(kept.unwrap_or_else(|| vec![0; length]));
    // SAFETY: there are at least so many bytes, and all are initialized.
    unsafe { Bytes::from_controller(Box::new(product), bytes) }
}

/// A list is done: frees what it has not taken, and keeps as much as it has.
pub(crate) fn end_list() {
    let mut pool = pool();
    if pool.taken > 0 {
        let before = emptied(&mut *pool);
        pool.limit = before.taken;
        drop(pool);
    }
}

/// The memory of a product.
struct Product(Words);

impl Drop for Product {
    fn drop(&mut self) {
        let mut pool = pool();
        if pool.words + self.0.len() <= pool.limit {
            pool.words += self.0.len();
            let words = emptied(&mut self.0);
            pool.free.entry(words.len()).or_default().push(words);
        }
    }
}

impl AllocationController for Product {
    fn alloc_align(&self) -> usize {
        align_of::<u64>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
        // SAFETY: the same bytes; callers write only what is initialized.
        Ok(unsafe { &mut *(&raw mut *bytes as *mut [MaybeUninit<u8>]) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.0);
        // SAFETY: the same bytes, of which any may be called uninitialized.
        Ok(unsafe { &*(&raw const *bytes as *const [MaybeUninit<u8>]) })
    }
}

#[cfg(test)]
#[path = "../tests/units/memory.rs"]
mod tests;
