//! What whoever runs the program has to know, in its log: one line for the process each.

use std::fmt::Display;
use std::io;
use std::sync::Once;

use sys::capabilities::{Capabilities, DISABLE_VARIABLE, RingUnavailable, unknown_disabled};

/// System calls are used where io_uring was to be.
pub(crate) fn fallback(cause: &dyn Display) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "many sockets in one call: io_uring is not available ({cause}); using system calls. `megapipe doctor` \
             tells how to mend it"
        );
    });
}

/// As [`fallback`], after the kernel refused a ring.
pub(crate) fn refused(cause: &io::Error) {
    match cause.raw_os_error() {
        Some(errno) => fallback(&RingUnavailable::from_errno(errno)),
        None => fallback(cause),
    }
}

/// `MEGAPIPE_ENGINE` or `MEGAPIPE_DISABLE` hold what means nothing.
pub(crate) fn settings(engine: Option<&str>) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if let Some(engine) = engine {
            tracing::warn!("MEGAPIPE_ENGINE is `{engine}`, which means nothing; set it to `uring` or `epoll`, or unset it");
        }
        let unknown = unknown_disabled();
        if !unknown.is_empty() {
            let names = Capabilities::names().collect::<Vec<_>>().join(", ");
            tracing::warn!("{DISABLE_VARIABLE} names no feature: {}; the names are {names}", unknown.join(", "));
        }
    });
}
