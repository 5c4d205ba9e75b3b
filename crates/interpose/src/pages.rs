//! The pages on which this process marks its waiters asleep.

use std::sync::atomic::{AtomicPtr, Ordering};

use promote::OwnLoop;
use sys::mapping::SharedMapping;

/// Own pages at most: one for each monitor that was connected.
const OWN_PAGES: usize = 64;
/// Own pages. Leaked: a waiter may read them at any time.
static OWN: [AtomicPtr<OwnLoop>; OWN_PAGES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; OWN_PAGES];

/// Own pages of the parent processes.
static EARLIER: [AtomicPtr<OwnLoop>; OWN_PAGES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; OWN_PAGES];

/// If this waiter of a parent process is asleep: the waiter, and a number that identifies its
/// sleep.
pub(crate) fn asleep_before(waiter: u32) -> Option<(u32, u32)> {
    let mut number = 0u32;
    pages(&EARLIER, |page| number = number.wrapping_add(page.asleep(waiter)));
    (number != 0).then_some((waiter, number))
}

/// Marks a waiter of this process asleep.
pub(crate) fn sleep(waiter: u32) {
    pages(&OWN, |page| page.sleep(waiter));
}

/// Marks it awake.
pub(crate) fn wake(waiter: u32) {
    pages(&OWN, |page| page.wake(waiter));
}

#[allow(unsafe_code)] // leaked pages are shared by address
fn pages(of: &[AtomicPtr<OwnLoop>], mut run: impl FnMut(&OwnLoop)) {
    for page in of {
        let page = page.load(Ordering::Acquire);
        if page.is_null() {
            break;
        }
        // SAFETY: only leaked boxes are stored there.
        run(unsafe { &*page });
    }
}

/// Keeps an own page for good: connections may outlive their monitor. False: there are
/// [`OWN_PAGES`] already.
pub(crate) fn keep(page: SharedMapping) -> bool {
    let Ok(page) = OwnLoop::new(page) else { return true };
    put(&OWN, Box::into_raw(Box::new(page)))
}

fn put(into: &[AtomicPtr<OwnLoop>], page: *mut OwnLoop) -> bool {
    let free = |place: &AtomicPtr<OwnLoop>| {
        place.compare_exchange(std::ptr::null_mut(), page, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    into.iter().any(free)
}

/// In the child of a fork: the pages are the parent's.
pub(crate) fn forget() {
    for place in &OWN {
        let page = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if page.is_null() {
            break;
        }
        put(&EARLIER, page);
    }
}
