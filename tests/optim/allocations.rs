//! How many allocations of this test program are alive.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

/// Those of all threads.
pub fn live_allocations() -> isize {
    LIVE.load(Ordering::Relaxed)
}

// SAFETY: all of it is the system's, and counting does not allocate.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}
