//! SIGPIPE as this process got it. The runtime of Rust ignores it before `main`; an ignored signal stays ignored in the
//! program that is executed (execve(2)), and service managers start programs either way.
#![allow(unsafe_code)] // a constructor, and sigaction(2)

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// Constructors run before the runtime starts.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    // SAFETY: a null action changes nothing, and the kernel fills a live struct.
    let ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    WAS_IGNORED.store(ignored, Ordering::Relaxed);
}

/// Makes it what it was.
pub(super) fn restore() {
    if !WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: the default action has no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}
