//! How the client and the hand-written server set up io_uring, so that neither has what the other
//! lacks.

use io_uring::{Builder, IoUring};

/// A ring of one thread with deferred task work and room for so many completions (io_uring_setup(2)).
pub(crate) fn builder(completions: u32) -> Builder {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_no_sqarray()
        .setup_clamp()
        .setup_cqsize(completions.next_power_of_two());
    builder
}
