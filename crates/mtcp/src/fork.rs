//! Whether this process is a child that was forked: threads of the parent are not in it.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process that has asked and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Differs in each child from what it was in its parent.
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts forks from now on.
pub(crate) fn watch() -> io::Result<()> {
    static WATCHED: Once = Once::new();
    let mut status = 0;
    // SAFETY: the function stays, and only counts.
    WATCHED.call_once(|| status = unsafe { libc::pthread_atfork(None, None, Some(count)) });
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}
