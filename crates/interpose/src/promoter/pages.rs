//! The pages on which this process tells that it sleeps.

use std::sync::atomic::{AtomicPtr, Ordering};

use promote::OwnLoop;
use sys::mapping::SharedMapping;

/// The most pages of one's own: one comes with each monitor that is met.
const OWN_PAGES: usize = 64;
/// Pages that this process tells its sleep on. Leaked: a sleeper may look at any time.
static OWN: [AtomicPtr<OwnLoop>; OWN_PAGES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; OWN_PAGES];

/// Tells that a sleeper of this process is about to sleep.
pub(crate) fn sleep(sleeper: u32) {
    own_pages(|page| page.sleep(sleeper));
}

/// Tells that it is awake.
pub(crate) fn wake(sleeper: u32) {
    own_pages(|page| page.wake(sleeper));
}

#[allow(unsafe_code)] // leaked pages are shared by address
fn own_pages(mut run: impl FnMut(&OwnLoop)) {
    for page in &OWN {
        let page = page.load(Ordering::Acquire);
        if page.is_null() {
            break;
        }
        // SAFETY: only leaked boxes are stored there.
        run(unsafe { &*page });
    }
}

/// Keeps a page of our own for good: connections of its monitor's time may outlive that. False:
/// there are [`OWN_PAGES`] already.
pub(super) fn keep(page: SharedMapping) -> bool {
    let Ok(page) = OwnLoop::new(page) else { return true };
    let page = Box::into_raw(Box::new(page));
    for place in &OWN {
        if place.compare_exchange(std::ptr::null_mut(), page, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
    }
    false
}

/// In the child of a fork: the pages are the parent's.
pub(super) fn forget() {
    OWN.iter().for_each(|page| page.store(std::ptr::null_mut(), Ordering::Release));
}
