//! Counts what is taken from the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// An allocator that counts. A test program makes it its own:
/// `#[global_allocator] static ALLOCATOR: CountingAllocator = CountingAllocator;`
pub struct CountingAllocator;

/// Bytes taken and not given back, by all threads.
static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations and reallocations the calling thread made so far.
pub fn calls() -> u64 {
    CALLS.with(Cell::get)
}

/// Bytes of the heap in use in this process.
pub fn live_bytes() -> isize {
    LIVE.load(Ordering::Relaxed)
}

fn count(bytes: isize) {
    LIVE.fetch_add(bytes, Ordering::Relaxed);
    // A thread that is ending has no counter any more; nobody asks for it either.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is System's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as in `alloc`; `memory` came from System.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as in `alloc`; `memory` came from System.
        unsafe { System.realloc(memory, layout, size) }
    }
}
